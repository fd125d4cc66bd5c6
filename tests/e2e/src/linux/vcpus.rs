//! Guests of 1 to 8 vCPUs.

use super::guest::{Config, Guest};
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check_eq, pass};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_guest_sees_its_1_vcpu",
        ids: &["VM02"],
        needs: Needs::Linux,
        run: |cx| sees(cx, 1),
    },
    Test {
        name: "a_guest_sees_its_2_vcpus",
        ids: &["VM02"],
        needs: Needs::Linux,
        run: |cx| sees(cx, 2),
    },
    Test {
        name: "a_guest_sees_its_4_vcpus",
        ids: &["VM02"],
        needs: Needs::Linux,
        run: |cx| sees(cx, 4),
    },
    Test {
        name: "a_guest_sees_its_8_vcpus",
        ids: &["VM02", "VM13"],
        needs: Needs::Linux,
        run: |cx| sees(cx, 8),
    },
];

fn sees(cx: &Context, vcpus: u32) -> TestResult {
    cx.block_on(async {
        let config = Config {
            vcpus,
            ..Config::new("workload=cpus")
        };
        let mut guest = Guest::boot(cx, &config).await?;
        let done = guest.console.report("done").await?;
        check_eq!(done["online"], vcpus, "CPUs online in the guest");
        guest.power_off().await?;
        pass()
    })
}
