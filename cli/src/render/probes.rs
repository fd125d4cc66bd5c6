//! Probes, and what can't be probed, as lines of text.

use vmprobe_client::v1;
use vmprobe_client::v1::probe::Kind;
use vmprobe_client::v1::{
    BlacklistEntry, FollowedCall, InstructionProbe, OptimizationState, Probe, ProbeState,
    ReturnProbe, Strategy,
};
use vmprobe_client::words;

use super::table;

/// Returns `[MODULE:]SYM+0xOFF`, or the address where no symbol covers it.
#[must_use]
pub fn place(probe: &Probe) -> String {
    if probe.symbol.is_empty() {
        return format!("{:#x}", probe.address);
    }
    let place = format!("{}+{:#x}", probe.symbol, probe.offset);
    if probe.module.is_empty() {
        place
    } else {
        format!("{}:{place}", probe.module)
    }
}

/// Returns the calls that are being followed, with the names of their probes, as a table under headings. No lines where
/// there are no calls.
#[must_use]
pub fn call_list(calls: &[FollowedCall], probes: &[Probe]) -> Vec<String> {
    const HEADINGS: [&str; 4] = ["PID", "TASK", "CALLER", "PROBES"];
    if calls.is_empty() {
        return Vec::new();
    }
    let name = |id: &u64| match probes.iter().find(|probe| probe.id == *id) {
        Some(probe) => probe.name.clone(),
        None => id.to_string(),
    };
    let row = |call: &FollowedCall| {
        let names: Vec<String> = call.probe_ids.iter().map(name).collect();
        vec![
            call.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            call.comm.as_deref().map_or("-".to_owned(), printable),
            format!("{:016x}", call.caller),
            match &*names {
                [] => "(removed)".to_owned(),
                names => names.join(" "),
            },
        ]
    };
    let mut rows = vec![HEADINGS.map(String::from).to_vec()];
    rows.extend(calls.iter().map(row));
    table(&rows, &[0])
}

/// Replaces control characters, as the guest chooses the names of its tasks.
fn printable(text: &str) -> String {
    let shown = |letter: char| if letter.is_control() { '?' } else { letter };
    text.chars().map(shown).collect()
}

/// Tells in a word whether a probe is a jump; empty where the server doesn't tell.
#[must_use]
pub fn jump(probe: &Probe) -> &'static str {
    match optimization_state(probe) {
        OptimizationState::Unspecified => "",
        OptimizationState::Optimized => "yes",
        OptimizationState::Waiting => "waiting",
        OptimizationState::Not => "no",
    }
}

pub(super) fn optimization_state(probe: &Probe) -> OptimizationState {
    let optimization = probe.optimization.as_ref();
    optimization.map_or(OptimizationState::Unspecified, v1::Optimization::state)
}

/// Returns the kind as the probe's definition has it: `p`, `p post fault`, `r64`, `w/8:rw`.
#[must_use]
pub fn kind(probe: &Probe) -> String {
    match &probe.kind {
        None => "p".to_owned(),
        Some(Kind::InstructionProbe(InstructionProbe { post, fault })) => {
            let post = if *post { " post" } else { "" };
            let fault = if *fault { " fault" } else { "" };
            format!("p{post}{fault}")
        }
        Some(Kind::ReturnProbe(ReturnProbe { maxactive, rets })) => {
            let rets = if *rets { " rets" } else { "" };
            match maxactive {
                0 => format!("r{rets}"),
                maxactive => format!("r{maxactive}{rets}"),
            }
        }
        Some(Kind::Watchpoint(watch)) => {
            let length = match watch.length {
                0 => 8,
                length => length,
            };
            let access = if watch.reads { "rw" } else { "w" };
            format!("w/{length}:{access}")
        }
    }
}

/// Returns the probe's state, in a word.
#[must_use]
pub fn state(probe: &Probe) -> &'static str {
    match probe.state() {
        ProbeState::Armed => "armed",
        ProbeState::Disabled => "disabled",
        ProbeState::Gone => "gone",
        ProbeState::Pending => "pending",
        ProbeState::Unspecified => "unknown",
    }
}

pub(super) fn strategy(probe: &Probe) -> &'static str {
    match probe.strategy() {
        Strategy::Emulate => "emulate",
        Strategy::Step => "step",
        Strategy::Boost => "boost",
        Strategy::Watch => "watch",
        Strategy::Unspecified => "",
    }
}

/// Returns probes byte for byte as the kernel prints its own in `/sys/kernel/debug/kprobes/list` (`report_probe` in
/// `kernel/kprobes.c`): address, `k` or `r`, place, module, state in brackets. The kernel has no watchpoints there;
/// they get a `w`. Probes whose module isn't loaded have no address and are left out.
#[must_use]
pub fn kernel_list(probes: &[Probe]) -> Vec<String> {
    let loaded = probes
        .iter()
        .filter(|probe| probe.state() != ProbeState::Pending);
    loaded.map(kernel_line).collect()
}

fn kernel_line(probe: &Probe) -> String {
    let letter = match &probe.kind {
        None | Some(Kind::InstructionProbe(_)) => "k",
        Some(Kind::ReturnProbe(_)) => "r",
        Some(Kind::Watchpoint(_)) => "w",
    };
    let state = match probe.state() {
        ProbeState::Gone => "[GONE]",
        ProbeState::Disabled => "[DISABLED]",
        ProbeState::Armed | ProbeState::Pending | ProbeState::Unspecified => "",
    };
    let jump = match optimization_state(probe) {
        OptimizationState::Optimized => "[OPTIMIZED]",
        _ => "",
    };
    let state = format!("{state}{jump}");
    let address = probe.address;
    // The kernel no longer has a name for a place in an unloaded module.
    let nameless = probe.state() == ProbeState::Gone && !probe.module.is_empty();
    if probe.symbol.is_empty() || nameless {
        return format!("{address:016x}  {letter}  {address:#x} {state}");
    }
    let module = match &*probe.module {
        "" => " ",
        module => module,
    };
    format!(
        "{address:016x}  {letter}  {}+{:#x}  {module} {state}",
        probe.symbol, probe.offset
    )
}

/// Returns a line about text that can't be probed, in the manner of the kernel's `/sys/kernel/debug/kprobes/blacklist`:
/// range, symbol, and behind them the kind and the reason; tabs between them.
#[must_use]
pub fn blacklist_line(entry: &BlacklistEntry) -> String {
    let offset = match entry.offset {
        0 => String::new(),
        offset => format!("+{offset:#x}"),
    };
    format!(
        "0x{:016x}-0x{:016x}\t{}{offset}\t{}\t{}",
        entry.start,
        entry.end,
        entry.symbol,
        words::blacklist_kind(entry.kind()),
        entry.reason
    )
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::{BlacklistKind, NoJumpReason, Watchpoint};

    use super::super::samples;
    use super::*;

    #[test]
    fn a_return_probe_at_the_functions_own_returns_says_so() {
        let mut probe = samples::probe();
        for (maxactive, shown) in [(64, "r64 rets"), (0, "r rets")] {
            let rets = true;
            probe.kind = Some(Kind::ReturnProbe(ReturnProbe { maxactive, rets }));
            assert_eq!(kind(&probe), shown);
        }
    }

    #[test]
    fn the_kernel_s_list_is_the_kernel_s_to_the_byte() {
        let plain = samples::probe();
        let mut of_module = plain.clone();
        of_module.module = "ext4".into();
        of_module.kind = Some(Kind::ReturnProbe(ReturnProbe::default()));
        let mut gone = of_module.clone();
        gone.set_state(ProbeState::Gone);
        let mut nameless = plain.clone();
        nameless.symbol.clear();
        nameless.kind = Some(Kind::Watchpoint(Watchpoint::default()));
        nameless.set_state(ProbeState::Disabled);
        let mut pending = plain.clone();
        pending.set_state(ProbeState::Pending);
        let jump =
            samples::with_optimization(OptimizationState::Optimized, NoJumpReason::Unspecified, "");
        assert_eq!(
            kernel_list(&[plain, jump, of_module, gone, nameless, pending]),
            [
                "ffffffff812f0c15  k  vfs_read+0x5    ",
                "ffffffff812f0c15  k  vfs_read+0x5    [OPTIMIZED]",
                "ffffffff812f0c15  r  vfs_read+0x5  ext4 ",
                "ffffffff812f0c15  r  0xffffffff812f0c15 [GONE]",
                "ffffffff812f0c15  w  0xffffffff812f0c15 [DISABLED]",
            ]
        );
    }

    #[test]
    fn a_blacklist_line_is_the_kernel_s_with_kind_and_reason() {
        let entry = BlacklistEntry {
            start: 0xffff_ffff_8100_0040,
            end: 0xffff_ffff_8100_0045,
            symbol: "vfs_read".into(),
            offset: 4,
            kind: BlacklistKind::Ftrace.into(),
            reason: "the kernel patches it".into(),
        };
        assert_eq!(
            blacklist_line(&entry),
            "0xffffffff81000040-0xffffffff81000045\tvfs_read+0x4\tftrace\tthe kernel patches it"
        );
    }
}
