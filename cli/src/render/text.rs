//! VMs and symbols as lines of text.

use std::time::Duration;

use vmprobe_client::v1::{Exits, Optimizer, Registers, Symbol, Vm, VmState};

use vmprobe_client::words::ending;
use vmprobe_trace_formats::named_registers;

use super::table;

/// Returns VMs, a line each: name, state, size, kernel.
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

/// Returns the release of the kernel, without who built it when; its file where that isn't known.
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

/// Returns what a list of VMs has no room for: the arena, the exits and the jumps, where the server tells of them.
#[must_use]
pub fn vm_details(vm: &Vm) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(arena) = vm.arena.as_ref().filter(|arena| !arena.available) {
        lines.push(format!("arena   {}", arena.reason));
    }
    if let Some(exits) = &vm.exits {
        let counts = named_exits(exits).map(|(name, count)| format!("{name} {count}"));
        lines.push(format!("exits   {}", counts.join(", ")));
    }
    if let Some(done) = &vm.optimizer
        && done.batches > 0
    {
        lines.push(format!("jumps   {}", optimizer(done)));
    }
    if vm.ring_damage > 0 {
        let times = vm.ring_damage;
        lines.push(format!(
            "damage  the guest has written over its own events, seen {times} times"
        ));
    }
    lines
}

/// Returns what turning probes into jumps has cost, such as `1000 probes in 1 batch, the guest stood still for 1.2ms`.
#[must_use]
pub fn optimizer(done: &Optimizer) -> String {
    let Optimizer {
        batches, probes, ..
    } = done;
    let stopped = Duration::from_nanos(done.stopped_ns);
    let probes = match probes {
        1 => "1 probe".to_owned(),
        probes => format!("{probes} probes"),
    };
    let batches = match batches {
        1 => "1 batch".to_owned(),
        batches => format!("{batches} batches"),
    };
    format!("{probes} in {batches}, the guest stood still for {stopped:.1?}")
}

pub(super) fn named_exits(exits: &Exits) -> [(&'static str, u64); 7] {
    [
        ("breakpoint", exits.breakpoint),
        ("step", exits.step),
        ("hardware", exits.hardware),
        ("port I/O", exits.port_io),
        ("MMIO", exits.mmio),
        ("interrupted", exits.interrupted),
        ("other", exits.other),
    ]
}

/// Returns a symbol as `nm` prints it.
#[must_use]
pub fn symbol_line(symbol: &Symbol) -> String {
    format!("{:016x} {} {}", symbol.address, symbol.kind, symbol.name)
}

/// Returns the general registers, three to a line.
#[must_use]
pub fn registers(registers: &Registers) -> Vec<String> {
    let cells: Vec<String> = named_registers(registers)
        .iter()
        .map(|(name, value)| format!("{name:<6} {value:016x}"))
        .collect();
    cells.chunks(3).map(|line| line.join("  ")).collect()
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::{Ending, EndingKind};

    use super::*;

    #[test]
    fn a_vm_tells_what_its_jumps_have_cost_once_there_are_some() {
        let mut vm = Vm {
            optimizer: Some(Optimizer::default()),
            ..Default::default()
        };
        assert!(vm_details(&vm).is_empty());
        vm.optimizer = Some(Optimizer {
            batches: 1,
            probes: 1000,
            stopped_ns: 1_234_567,
            ..Default::default()
        });
        assert_eq!(
            vm_details(&vm),
            ["jumps   1000 probes in 1 batch, the guest stood still for 1.2ms"]
        );
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
