//! Guests of 1 to 64 vCPUs.

use std::collections::BTreeMap;

use super::guest::{Config, Guest, VM, files};
use super::jumps::{self, jump};
use crate::context::Context;
use crate::events;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass};

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
    Test {
        name: "calls_on_each_of_16_vcpus_are_hits_of_breakpoints_and_of_jumps",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: |cx| hits(cx, 16, 20),
    },
    Test {
        name: "calls_on_each_of_64_vcpus_are_hits_of_breakpoints_and_of_jumps",
        ids: &["VM11"],
        needs: Needs::Linux,
        run: |cx| hits(cx, 64, 5),
    },
];

/// Makes the same number of calls on each vCPU: of a jump that writes records, and then of the breakpoint in its place.
fn hits(cx: &Context, vcpus: u32, calls: u64) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::new(cx, files::BZIMAGE_6_12, vcpus).await?;
        let all = u64::from(vcpus) * calls;
        let work = format!("threads syscall=umask count={calls}");
        let probes = guest.probes(&["p:call __x64_sys_umask"]).await?;
        let mut stream = guest.client.events(VM, vec![probes[0].id]).await?;
        let mut before = jump(&guest, "call").await?;
        for is_jump in [true, false] {
            guest.client.set_optimization(VM, is_jump).await?;
            guest.work(&work).await?;
            let (events, lost) = events::next(&mut stream, all).await?;
            check_eq!(lost, 0, "lost events");
            let mut of_vcpu = BTreeMap::new();
            for event in events {
                *of_vcpu.entry(event.vcpu).or_insert(0) += 1;
            }
            let expected: BTreeMap<u32, u64> = (0..vcpus).map(|vcpu| (vcpu, calls)).collect();
            check_eq!(
                of_vcpu,
                expected,
                "events of each vCPU, of a jump: {is_jump}"
            );
            let now = guest.listed("call").await?;
            check_eq!(now.hits, before.hits + all, "hits, of a jump: {is_jump}");
            match is_jump {
                true => jumps::no_exits(&before, &now, "of a jump")?,
                false => check!(now.exits >= before.exits + all, "{before:?}, then {now:?}"),
            }
            before = now;
        }
        guest.finish().await?;
        pass()
    })
}

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
