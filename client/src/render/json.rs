//! VMs, probes, symbols and events as JSON values.

use serde_json::{Map, Value, json};
use vmprobe_proto::v1::{Ending, Event, Probe, ProbeState, Registers, Symbol, Vm};

use super::text::{ending_kind, named_registers, strategy, vm_state};

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

/// A probe; `state` is `armed`, `disabled` or `gone`.
#[must_use]
pub fn probe_json(probe: &Probe) -> Value {
    let state = match probe.state() {
        ProbeState::Armed => "armed",
        ProbeState::Disabled => "disabled",
        ProbeState::Gone => "gone",
        ProbeState::Unspecified => "unknown",
    };
    json!({
        "id": probe.id,
        "name": probe.name,
        "address": hex(probe.address),
        "symbol": probe.symbol,
        "offset": probe.offset,
        "hits": probe.hits,
        "missed": probe.missed,
        "state": state,
        "strategy": strategy(probe),
        "strategy_reason": probe.strategy_reason,
        "instruction": probe.instruction,
    })
}

/// A VM; `ending` is null until it has ended.
#[must_use]
pub fn vm_json(vm: &Vm) -> Value {
    json!({
        "name": vm.name,
        "state": vm_state(vm),
        "vcpus": vm.vcpus,
        "memory_mib": vm.memory_mib,
        "kernel": vm.kernel,
        "kernel_version": vm.kernel_version,
        "symbols": vm.symbols,
        "ending": vm.ending.as_ref().map(ending_json),
    })
}

/// How a guest ended.
#[must_use]
pub fn ending_json(ending: &Ending) -> Value {
    json!({
        "kind": ending_kind(ending),
        "exit_code": ending.exit_code,
        "detail": ending.detail,
    })
}

/// A symbol.
#[must_use]
pub fn symbol_json(symbol: &Symbol) -> Value {
    json!({
        "name": symbol.name,
        "address": hex(symbol.address),
        "kind": symbol.kind,
    })
}

/// A hit with all its registers; `probe` is the probe's name, empty where that isn't known.
#[must_use]
pub fn event_json(event: &Event, probe: &str) -> Value {
    json!({
        "probe": probe,
        "probe_id": event.probe_id,
        "vcpu": event.vcpu,
        "tsc": event.tsc,
        "registers": registers_json(&event.registers.unwrap_or_default()),
    })
}

/// The general registers, by name.
#[must_use]
pub fn registers_json(registers: &Registers) -> Value {
    let registers: Map<String, Value> = named_registers(registers)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::String(hex(value))))
        .collect();
    registers.into()
}

/// Hits lost at this point of the stream.
#[must_use]
pub fn lost_json(lost: u64) -> Value {
    json!({ "lost": lost })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn addresses_are_strings_so_that_no_bit_is_lost() {
        assert_eq!(
            probe_json(&samples::probe())["address"],
            "0xffffffff812f0c15"
        );
        let event = event_json(&samples::event(9), "vfs_read+0x5");
        assert_eq!(event["registers"]["rdi"], "0xffff888001234567");
        assert_eq!(event["tsc"], 9);
        assert_eq!(event["probe"], "vfs_read+0x5");
    }

    #[test]
    fn a_running_vm_has_a_null_ending() {
        assert!(vm_json(&Vm::default())["ending"].is_null());
    }
}
