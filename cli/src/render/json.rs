//! VMs, probes and symbols as JSON values.

use serde_json::{Map, Value, json};
use vmprobe_client::v1::probe::Kind;
use vmprobe_client::v1::{
    Argument, BlacklistEntry, Capture, Ending, Exits, FollowedCall, Optimization,
    OptimizationState, Optimizer, Probe, ProbeOptions, Registers, Stops, Symbol, Vm,
};
use vmprobe_client::{spec, words};
use vmprobe_trace_formats::named_registers;

use super::probes::{state, strategy};
use super::text::vm_state;

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

/// Returns a probe; `state` is `armed`, `disabled`, `gone` or `pending`, `kind` is `instruction` (with `post` and
/// `fault`), `return` (with `maxactive` and `rets`) or `watchpoint` (with `length` and `reads`). `optimization` (its
/// `state` is `optimized`, `waiting` or `not`) is null where the server doesn't tell; `capture` of the `options` is
/// `full`, `registers` or `count`.
#[must_use]
pub fn probe_json(probe: &Probe) -> Value {
    let mut value = json!({
        "id": probe.id,
        "name": probe.name,
        "address": hex(probe.address),
        "symbol": probe.symbol,
        "offset": probe.offset,
        "module": probe.module,
        "hits": probe.hits,
        "missed": probe.missed,
        "ended": probe.ended,
        "exits": probe.exits,
        "trips": probe.trips,
        "state": state(probe),
        "strategy": strategy(probe),
        "strategy_reason": probe.strategy_reason,
        "instruction": probe.instruction,
        "arguments": probe.arguments.iter().map(argument_json).collect::<Vec<_>>(),
        "filter": probe.filter,
        "stack": probe.stack,
        "actions": probe.actions.iter().map(spec::actions::text).collect::<Vec<_>>(),
        "actions_done": probe.actions_done,
        "actions_failed": probe.actions_failed,
        "action_failure": probe.action_failure,
        "attended": probe.attended,
        "options": options_json(&probe.options.clone().unwrap_or_default()),
        "optimization": probe.optimization.as_ref().map(optimization_json),
    });
    match probe
        .kind
        .unwrap_or(Kind::InstructionProbe(Default::default()))
    {
        Kind::InstructionProbe(probe) => {
            value["kind"] = "instruction".into();
            value["post"] = probe.post.into();
            value["fault"] = probe.fault.into();
        }
        Kind::ReturnProbe(probe) => {
            value["kind"] = "return".into();
            value["maxactive"] = probe.maxactive.into();
            value["rets"] = probe.rets.into();
        }
        Kind::Watchpoint(probe) => {
            value["kind"] = "watchpoint".into();
            value["length"] = probe.length.into();
            value["reads"] = probe.reads.into();
        }
    }
    value
}

fn argument_json(argument: &Argument) -> Value {
    json!({ "name": argument.name, "definition": argument.definition })
}

fn options_json(options: &ProbeOptions) -> Value {
    let capture = match options.capture() {
        Capture::Unspecified | Capture::Full => "full",
        Capture::Registers => "registers",
        Capture::Count => "count",
    };
    let conditions: Vec<String> = options
        .conditions
        .iter()
        .map(spec::condition_text)
        .collect();
    json!({
        "capture": capture,
        "registers": spec::register_names(options),
        "conditions": conditions,
        "lossless": options.lossless,
        "no_jump": !spec::may_optimize(options),
    })
}

fn optimization_json(optimization: &Optimization) -> Value {
    let state = match optimization.state() {
        OptimizationState::Optimized => "optimized",
        OptimizationState::Waiting => "waiting",
        OptimizationState::Not => "not",
        OptimizationState::Unspecified => "unknown",
    };
    json!({
        "state": state,
        "kind": words::no_jump(optimization),
        "reason": optimization.reason,
    })
}

/// Returns what turning probes into jumps has cost.
#[must_use]
pub fn optimizer_json(optimizer: &Optimizer) -> Value {
    json!({
        "batches": optimizer.batches,
        "probes": optimizer.probes,
        "stopped_ns": optimizer.stopped_ns,
        "last_probes": optimizer.last_probes,
        "last_stopped_ns": optimizer.last_stopped_ns,
    })
}

/// Returns text that can't be probed.
#[must_use]
pub fn blacklist_json(entry: &BlacklistEntry) -> Value {
    json!({
        "start": hex(entry.start),
        "end": hex(entry.end),
        "symbol": entry.symbol,
        "offset": entry.offset,
        "kind": words::blacklist_kind(entry.kind()),
        "reason": entry.reason,
    })
}

/// Returns a call that is being followed; what isn't known is null.
#[must_use]
pub fn call_json(call: &FollowedCall) -> Value {
    json!({
        "probes": call.probe_ids,
        "task": Some(call.task).filter(|task| *task != 0).map(hex),
        "pid": call.pid,
        "comm": call.comm,
        "entry_tsc": call.entry_tsc,
        "caller": hex(call.caller),
    })
}

/// Returns a VM; `ending` is null until it has ended.
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
        "exits": vm.exits.as_ref().map(exits_json),
        "stops": vm.stops.as_ref().map(stops_json),
        "arena": vm.arena.as_ref().map_or("", |arena| &arena.reason),
        "optimizer": vm.optimizer.as_ref().map(optimizer_json),
        "ring_damage": vm.ring_damage,
    })
}

fn stops_json(stops: &Stops) -> Value {
    json!({
        "count": stops.count,
        "ns": stops.ns,
        "longest_ns": stops.longest_ns,
        "alone": stops.alone,
        "alone_ns": stops.alone_ns,
    })
}

fn exits_json(exits: &Exits) -> Value {
    json!({
        "breakpoint": exits.breakpoint,
        "step": exits.step,
        "hardware": exits.hardware,
        "port_io": exits.port_io,
        "mmio": exits.mmio,
        "interrupted": exits.interrupted,
        "other": exits.other,
    })
}

/// Returns how a guest ended.
#[must_use]
pub fn ending_json(ending: &Ending) -> Value {
    json!({
        "kind": words::ending_kind(ending),
        "exit_code": ending.exit_code,
        "detail": ending.detail,
    })
}

/// Returns a symbol.
#[must_use]
pub fn symbol_json(symbol: &Symbol) -> Value {
    json!({
        "name": symbol.name,
        "address": hex(symbol.address),
        "kind": symbol.kind,
    })
}

/// Returns the general registers, by name.
#[must_use]
pub fn registers_json(registers: &Registers) -> Value {
    let registers: Map<String, Value> = named_registers(registers)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::String(hex(value))))
        .collect();
    registers.into()
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::NoJumpReason;

    use super::super::samples;
    use super::*;

    #[test]
    fn addresses_are_strings_so_that_no_bit_is_lost() {
        assert_eq!(
            probe_json(&samples::probe())["address"],
            "0xffffffff812f0c15"
        );
    }

    #[test]
    fn a_probe_tells_what_it_captures_and_whether_it_is_a_jump() {
        let mut probe = samples::probe();
        assert!(probe_json(&probe)["optimization"].is_null());
        probe.options = vmprobe_client::spec::parse("f regs=rdi if=edi==-2")
            .unwrap()
            .options;
        let mut optimization = Optimization {
            reason_kind: NoJumpReason::Branch.into(),
            ..Default::default()
        };
        optimization.set_state(OptimizationState::Not);
        probe.optimization = Some(optimization);
        let value = probe_json(&probe);
        assert_eq!(value["options"]["registers"], json!(["rdi"]));
        assert_eq!(value["options"]["conditions"], json!(["edi==-2"]));
        assert_eq!(value["optimization"]["state"], "not");
        assert_eq!(value["optimization"]["kind"], "branch");
    }

    #[test]
    fn a_running_vm_has_a_null_ending() {
        assert!(vm_json(&Vm::default())["ending"].is_null());
    }
}
