//! VMs, probes and symbols as lines of text.

use vmprobe_proto::v1::{
    Ending, EndingKind, Probe, ProbeState, Registers, Strategy, Symbol, Vm, VmState,
};

use super::table;

/// `SYM+0xOFF`, or the address where no symbol covers it.
#[must_use]
pub fn place(probe: &Probe) -> String {
    if probe.symbol.is_empty() {
        format!("{:#x}", probe.address)
    } else {
        format!("{}+{:#x}", probe.symbol, probe.offset)
    }
}

/// Probes in the manner of the kernel's `/sys/kernel/debug/kprobes/list`: address, `k`, place, then
/// our own columns (name, counts, how the instruction is passed, the instruction), and the state in
/// brackets unless the probe is armed.
#[must_use]
pub fn probe_list(probes: &[Probe]) -> Vec<String> {
    let rows: Vec<Vec<String>> = probes
        .iter()
        .map(|probe| {
            let place = place(probe);
            let name = if probe.name == place {
                String::new()
            } else {
                probe.name.clone()
            };
            vec![
                format!("{:016x}", probe.address),
                "k".to_owned(),
                place,
                name,
                format!("hits {}", probe.hits),
                format!("missed {}", probe.missed),
                strategy(probe).to_owned(),
                probe.instruction.clone(),
                state(probe).to_owned(),
            ]
        })
        .collect();
    table(&rows, &[])
}

fn state(probe: &Probe) -> &'static str {
    match probe.state() {
        ProbeState::Armed | ProbeState::Unspecified => "",
        ProbeState::Disabled => "[DISABLED]",
        ProbeState::Gone => "[GONE]",
    }
}

pub(super) fn strategy(probe: &Probe) -> &'static str {
    match probe.strategy() {
        Strategy::Emulate => "emulate",
        Strategy::Step => "step",
        Strategy::Unspecified => "",
    }
}

/// VMs, a line each: name, state, size, kernel.
#[must_use]
pub fn vm_list(vms: &[Vm]) -> Vec<String> {
    let rows: Vec<Vec<String>> = vms
        .iter()
        .map(|vm| {
            vec![
                vm.name.clone(),
                vm.ending
                    .as_ref()
                    .map_or_else(|| vm_state(vm).to_owned(), ending),
                format!("{} vCPU", vm.vcpus),
                format!("{} MiB", vm.memory_mib),
                kernel(vm),
            ]
        })
        .collect();
    table(&rows, &[2, 3])
}

/// The release of the kernel, without who built it when; its file where that isn't known.
fn kernel(vm: &Vm) -> String {
    let release = vm.kernel_version.split_whitespace().next();
    release.unwrap_or(&vm.kernel).to_owned()
}

pub(super) fn vm_state(vm: &Vm) -> &'static str {
    match vm.state() {
        VmState::Created => "created",
        VmState::Running => "running",
        VmState::Paused => "paused",
        VmState::Ended => "ended",
        VmState::Unspecified => "unknown",
    }
}

/// How a guest ended, such as `power-off` or `panic (exit 101): Attempted to kill init!`.
#[must_use]
pub fn ending(ending: &Ending) -> String {
    let mut text = ending_kind(ending).to_owned();
    if ending.exit_code != 0 {
        text += &format!(" (exit {})", ending.exit_code);
    }
    if !ending.detail.is_empty() {
        text += ": ";
        text += &ending.detail;
    }
    text
}

pub(super) fn ending_kind(ending: &Ending) -> &'static str {
    match ending.kind() {
        EndingKind::PowerOff => "power-off",
        EndingKind::Reset => "reset",
        EndingKind::Panic => "panic",
        EndingKind::TripleFault => "triple fault",
        EndingKind::Killed => "killed",
        EndingKind::Failed => "failed",
        EndingKind::Unspecified => "ended",
    }
}

/// A symbol as `nm` prints it.
#[must_use]
pub fn symbol_line(symbol: &Symbol) -> String {
    format!("{:016x} {} {}", symbol.address, symbol.kind, symbol.name)
}

/// The general registers, three to a line.
#[must_use]
pub fn registers(registers: &Registers) -> Vec<String> {
    let cells: Vec<String> = named_registers(registers)
        .iter()
        .map(|(name, value)| format!("{name:<6} {value:016x}"))
        .collect();
    cells.chunks(3).map(|line| line.join("  ")).collect()
}

pub(super) fn named_registers(registers: &Registers) -> [(&'static str, u64); 18] {
    let r = registers;
    [
        ("rip", r.rip),
        ("rsp", r.rsp),
        ("rflags", r.rflags),
        ("rax", r.rax),
        ("rbx", r.rbx),
        ("rcx", r.rcx),
        ("rdx", r.rdx),
        ("rsi", r.rsi),
        ("rdi", r.rdi),
        ("rbp", r.rbp),
        ("r8", r.r8),
        ("r9", r.r9),
        ("r10", r.r10),
        ("r11", r.r11),
        ("r12", r.r12),
        ("r13", r.r13),
        ("r14", r.r14),
        ("r15", r.r15),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_probe_list_has_the_kernel_s_columns_first() {
        let mut named = samples::probe();
        named.name = "boot".into();
        named.symbol = "start_kernel".into();
        named.offset = 0;
        named.hits = 1;
        named.strategy = Strategy::Step.into();
        named.set_state(ProbeState::Gone);
        assert_eq!(
            probe_list(&[samples::probe(), named]),
            [
                "ffffffff812f0c15  k  vfs_read+0x5            hits 42  missed 0  emulate  push %rbp",
                "ffffffff812f0c15  k  start_kernel+0x0  boot  hits 1   missed 0  step     push %rbp  [GONE]",
            ]
        );
    }

    #[test]
    fn an_ending_says_kind_exit_code_and_detail() {
        let mut end = Ending::default();
        end.set_kind(EndingKind::PowerOff);
        assert_eq!(ending(&end), "power-off");
        end.set_kind(EndingKind::Panic);
        end.exit_code = 101;
        end.detail = "no init found".into();
        assert_eq!(ending(&end), "panic (exit 101): no init found");
    }

    #[test]
    fn a_vm_list_shows_the_state_or_the_ending() {
        let mut running = Vm {
            name: "a".into(),
            vcpus: 2,
            memory_mib: 512,
            kernel: "/k".into(),
            ..Default::default()
        };
        running.set_state(VmState::Running);
        let mut ended = running.clone();
        ended.name = "bb".into();
        ended.kernel_version = "6.1.0 (builder@host) #1 SMP".into();
        let mut end = Ending::default();
        end.set_kind(EndingKind::Reset);
        ended.ending = Some(end);
        assert_eq!(
            vm_list(&[running, ended]),
            [
                "a   running  2 vCPU  512 MiB  /k",
                "bb  reset    2 vCPU  512 MiB  6.1.0"
            ]
        );
    }
}
