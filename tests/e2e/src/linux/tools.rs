//! The guest's own tools at places that we probe: kprobes, function tracers, static keys,
//! debuggers.

use super::code::straight;
use super::guest::{Guest, files};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "the_guest_s_kprobes_and_ours_count_the_same_calls_on_6_1",
        ids: &["KP13", "TR05"],
        needs: Needs::Linux,
        run: |cx| kprobes(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "the_guest_s_kprobes_and_ours_count_the_same_calls_on_6_12",
        ids: &["KP13", "TR05"],
        needs: Needs::Linux,
        run: |cx| kprobes(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "the_guest_s_function_tracers_and_ours_count_the_same_calls",
        ids: &["KP13"],
        needs: Needs::Linux,
        run: tracers,
    },
    Test {
        name: "the_guest_patches_its_static_keys_while_probes_count_every_call",
        ids: &["KP12"],
        needs: Needs::Linux,
        run: static_keys,
    },
    Test {
        name: "a_debugger_in_the_guest_keeps_every_breakpoint",
        ids: &["KP12"],
        needs: Needs::Linux,
        run: debugger,
    },
];

const FUNCTION: &str = "__x64_sys_umask";
const CALLS: u64 = 100;

/// Checks that our probes of these names have counted these calls.
async fn counted(guest: &Guest, names: &[&str], calls: u64) -> Result<(), Failure> {
    for name in names {
        let probe = guest.listed(name).await?;
        check_eq!(probe.hits, calls, "hits of {name} ({})", probe.instruction);
    }
    Ok(())
}

/// The guest's kprobe at the entry uses the ftrace site, and one further inside is an int3 of its
/// own. Our probes are behind each in the same function, and the other way round.
fn kprobes(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 2).await?;
        let (ours, ret) = (format!("ours={FUNCTION}"), format!("r:ret {FUNCTION}"));
        guest.probes(&[&ours, &ret]).await?;
        let done = guest
            .work(&format!("kprobe syscall=umask count={CALLS}"))
            .await?;
        for name in ["p0", "r0"] {
            let event = &done["events"][name];
            check_eq!(event["hits"], CALLS, "hits of the guest's {name}: {done}");
            check_eq!(event["missed"], 0, "misses of the guest's {name}");
            check_eq!(event["traced"], CALLS, "trace lines of the guest's {name}");
        }
        counted(&guest, &["ours", "ret"], CALLS).await?;
        guest.remove(&["ours", "ret"]).await?;

        // The guest's int3 is two instructions behind the entry, and our probe is on the next one.
        let start = guest.symbol(FUNCTION).await?;
        let inside = straight(&guest, FUNCTION).await?;
        let entry = guest.probe(&ours).await?;
        guest.remove(&["ours"]).await?;
        let behind: Vec<u64> = inside
            .iter()
            .map(iced_x86::Instruction::ip)
            .filter(|ip| *ip >= entry.address)
            .collect();
        check!(
            behind.len() > 2,
            "{FUNCTION} has a branch too early: {inside:x?}"
        );
        guest
            .probe(&format!("ours={FUNCTION}+{:#x}", behind[1] - start))
            .await?;
        let at = behind[0] - start;
        let done = guest
            .work(&format!(
                "kprobe syscall=umask count={CALLS} at={FUNCTION}+{at:#x}"
            ))
            .await?;
        check_eq!(
            done["events"]["p0"]["hits"],
            CALLS,
            "hits of the guest's own int3 at {FUNCTION}+{at:#x}: {done}"
        );
        counted(&guest, &["ours"], CALLS).await?;
        guest.finish().await?;
        pass()
    })
}

fn tracers(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_12, 2).await?;
        let (ours, ret) = (format!("ours={FUNCTION}"), format!("r:ret {FUNCTION}"));
        guest.probes(&[&ours, &ret]).await?;
        let done = guest
            .work(&format!("ftrace syscall=umask count={CALLS}"))
            .await?;
        for tracer in ["function", "function_graph"] {
            let seen = &done["seen"][tracer][FUNCTION];
            check_eq!(*seen, CALLS, "calls that the guest's {tracer} tracer saw");
        }
        // Once for each tracer.
        counted(&guest, &["ours", "ret"], 2 * CALLS).await?;
        guest.finish().await?;
        pass()
    })
}

fn static_keys(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 4).await?;
        // Functions whose jump labels are switched. They are probed where that is possible.
        let others = [
            "__schedule",
            "ttwu_do_wakeup",
            "send_signal_locked",
            "__run_timers",
        ];
        for name in others {
            // Some kernels lack one, or don't let it be probed.
            let _refused = guest.probe(name).await;
        }
        guest.probe(&format!("ours={FUNCTION}")).await?;
        let done = guest
            .work("statickeys syscall=umask count=20 rounds=2")
            .await?;
        let calls = done["calls"].as_u64().unwrap_or_default();
        check!(calls > 0, "no calls: {done}");
        counted(&guest, &["ours"], calls).await?;
        guest.finish().await?;
        pass_with(format!("{calls} calls, {} switches", done["switches"]))
    })
}

fn debugger(cx: &Context) -> TestResult {
    const HITS: u64 = 200;
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 2).await?;
        guest
            .probes(&["vfs_read", "ptrace_request", "force_sig_fault"])
            .await?;
        let done = guest.work(&format!("debugger count={HITS}")).await?;
        check_eq!(done["debugged"], HITS, "hits of the debugger's breakpoint");
        check_eq!(
            done["handled"],
            HITS,
            "int3s of a process that handles them"
        );
        guest.finish().await?;
        pass()
    })
}
