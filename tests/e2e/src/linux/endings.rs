//! The console both ways, and how a guest ends.

use vmprobe_client::v1::EndingKind;

use super::guest::{Config, Guest};
use crate::context::Context;
use crate::test::{Needs, Test, TestResult, check, check_eq, pass};

pub const TESTS: &[Test] = &[
    Test {
        name: "console_input_reaches_the_guest_and_power_off_is_exit_0",
        ids: &["VM03"],
        needs: Needs::Linux,
        run: console_and_power_off,
    },
    Test {
        name: "a_reboot_ends_the_guest_as_a_reset",
        ids: &["VM03"],
        needs: Needs::Linux,
        run: |cx| ends(cx, "quiet", "end=reboot", EndingKind::Reset, 3, ""),
    },
    Test {
        name: "a_panic_ends_the_guest_with_its_reason",
        ids: &["VM03"],
        needs: Needs::Linux,
        run: |cx| {
            ends(
                cx,
                "quiet",
                "end=panic",
                EndingKind::Panic,
                4,
                "Attempted to kill init!",
            )
        },
    },
    Test {
        name: "a_crash_with_panic_reboot_is_still_a_panic",
        ids: &["VM03"],
        needs: Needs::Linux,
        run: |cx| {
            ends(
                cx,
                "quiet panic=-1",
                "end=crash",
                EndingKind::Panic,
                4,
                "sysrq triggered crash",
            )
        },
    },
    Test {
        name: "a_reboot_by_triple_fault_is_named_so",
        ids: &["VM03"],
        needs: Needs::Linux,
        run: |cx| {
            ends(
                cx,
                "quiet reboot=t",
                "end=reboot",
                EndingKind::TripleFault,
                5,
                "",
            )
        },
    },
];

fn console_and_power_off(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::boot(cx, &Config::new("workload=echo")).await?;
        guest.console.report("ready").await?;
        // Longer than the serial port's FIFO of 64 bytes, all of it sent at once.
        let long = "0123456789abcdef".repeat(15);
        for text in ["hello", &long, "quit"] {
            guest.console.send(format!("{text}\n").as_bytes()).await?;
        }
        for text in ["hello", &long] {
            let line = guest.console.report("line").await?;
            check_eq!(line["text"], *text, "the line that the guest read");
        }
        guest.power_off().await?;
        pass()
    })
}

fn ends(
    cx: &Context,
    kernel_args: &'static str,
    plan: &'static str,
    kind: EndingKind,
    exit_code: u32,
    detail: &str,
) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::boot(
            cx,
            &Config {
                kernel_args,
                ..Config::new(plan)
            },
        )
        .await?;
        guest.console.report("ending").await?;
        let ending = guest.ending().await?;
        check_eq!(
            ending.kind(),
            kind,
            "the kind of the ending ({})",
            ending.detail
        );
        check_eq!(ending.exit_code, exit_code, "its exit code");
        check!(
            ending.detail.contains(detail),
            "no {detail:?} in {:?}",
            ending.detail
        );
        pass()
    })
}
