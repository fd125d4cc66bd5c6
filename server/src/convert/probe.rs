//! Registered probes and symbols.

use guest_kernel::symbols::Symbol;
use guest_state::Access;
use probe_engine::engine::FollowedCall;
use probe_engine::probe::{ProbeInfo, ProbeKind, ProbeState, Strategy};
use vmprobe_proto::v1;
use vmprobe_proto::v1::probe::Kind;

use super::{actions, options};

/// Returns the protocol's form of many probes.
pub fn probes(infos: Vec<ProbeInfo>) -> Vec<v1::Probe> {
    infos.into_iter().map(probe).collect()
}

fn probe(info: ProbeInfo) -> v1::Probe {
    v1::Probe {
        id: info.id.0,
        name: info.name,
        address: info.address.0,
        symbol: info.symbol,
        offset: info.offset,
        hits: info.hits,
        missed: info.missed,
        ended: info.ended,
        state: state(info.state).into(),
        strategy: strategy(info.strategy).into(),
        strategy_reason: info.reason,
        instruction: info.instruction,
        module: info.module.unwrap_or_default(),
        kind: Some(kind(info.kind)),
        exits: info.exits,
        trips: info.trips,
        options: Some(options::told_options(&info.options)),
        optimization: Some(options::optimization(info.optimization)),
        actions: actions::told_actions(&info.options.actions),
        actions_done: info.actions,
        actions_failed: info.failed_actions,
        action_failure: info.action_failure,
        attended: info.attended,
        ..v1::Probe::default()
    }
}

/// Returns the protocol's form of a followed call.
pub fn followed_call(call: FollowedCall) -> v1::FollowedCall {
    v1::FollowedCall {
        probe_ids: call.probes.iter().map(|id| id.0).collect(),
        entry_tsc: call.entry_tsc.map(|tsc| tsc.0),
        caller: call.caller.0,
        task: call.task.unwrap_or(0),
        pid: call.pid,
        comm: call.comm,
    }
}

/// Returns true if a probe doesn't wait to become a jump, nor for the reason why it can't. A probe
/// that can't be hit has nothing to wait for.
pub fn is_settled(probe: &v1::Probe) -> bool {
    let optimization = probe.optimization.as_ref().map(v1::Optimization::state);
    probe.state() != v1::ProbeState::Armed || optimization != Some(v1::OptimizationState::Waiting)
}

fn kind(kind: ProbeKind) -> Kind {
    match kind {
        ProbeKind::Instruction { post, fault } => {
            Kind::InstructionProbe(v1::InstructionProbe { post, fault })
        }
        ProbeKind::Return { maxactive } => Kind::ReturnProbe(v1::ReturnProbe {
            maxactive: maxactive.unwrap_or(0),
            rets: false,
        }),
        ProbeKind::Exits { maxactive } => Kind::ReturnProbe(v1::ReturnProbe {
            maxactive: maxactive.unwrap_or(0),
            rets: true,
        }),
        ProbeKind::Watch { len, access } => Kind::Watchpoint(v1::Watchpoint {
            length: len.into(),
            reads: access == Access::ReadWrite,
        }),
    }
}

fn state(state: ProbeState) -> v1::ProbeState {
    match state {
        ProbeState::Armed => v1::ProbeState::Armed,
        ProbeState::Disabled => v1::ProbeState::Disabled,
        ProbeState::Gone => v1::ProbeState::Gone,
        ProbeState::Pending => v1::ProbeState::Pending,
    }
}

fn strategy(strategy: Strategy) -> v1::Strategy {
    match strategy {
        Strategy::Emulate => v1::Strategy::Emulate,
        Strategy::Boost => v1::Strategy::Boost,
        Strategy::Step => v1::Strategy::Step,
        Strategy::Watch => v1::Strategy::Watch,
    }
}

/// Returns the protocol's form of a symbol.
pub fn symbol(symbol: Symbol<'_>) -> v1::Symbol {
    v1::Symbol {
        name: symbol.name.to_owned(),
        address: symbol.address.0,
        kind: symbol.kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_state::GuestVirtAddr;
    use probe_engine::probe::ProbeId;
    use probe_engine::probe::{NoJump, Optimization, Options};

    fn info(kind: ProbeKind) -> ProbeInfo {
        ProbeInfo {
            id: ProbeId(3),
            name: "n".into(),
            kind,
            address: GuestVirtAddr(0x1005),
            module: None,
            symbol: "f".into(),
            offset: 5,
            instruction: "ret".into(),
            strategy: Strategy::Boost,
            reason: "why".into(),
            hits: 1,
            missed: 2,
            ended: 5,
            exits: 4,
            trips: 3,
            actions: 6,
            failed_actions: 7,
            action_failure: "so".into(),
            attended: true,
            state: ProbeState::Pending,
            options: Options::default(),
            optimization: Optimization::Waiting,
        }
    }

    #[test]
    fn a_probe_is_told_with_its_kind_and_counts() {
        let probe = probe(ProbeInfo {
            module: Some("m".into()),
            ..info(ProbeKind::PRE)
        });
        assert_eq!(
            (probe.id, probe.address, probe.offset, probe.module.as_str()),
            (3, 0x1005, 5, "m")
        );
        assert_eq!(
            (probe.hits, probe.missed, probe.exits, probe.trips),
            (1, 2, 4, 3)
        );
        assert_eq!(probe.ended, 5);
        assert_eq!(probe.strategy(), v1::Strategy::Boost);
        assert_eq!(probe.state(), v1::ProbeState::Pending);
        assert_eq!(
            probe.optimization.unwrap_or_default().state(),
            v1::OptimizationState::Waiting
        );
        assert_eq!(
            probe.options.unwrap_or_default().capture(),
            v1::Capture::Full
        );
    }

    #[test]
    fn a_probe_is_settled_unless_it_is_armed_and_waits() {
        let not = Optimization::Not(NoJump::Asked);
        for (state, optimization, settled) in [
            (ProbeState::Armed, Optimization::Waiting, false),
            (ProbeState::Armed, Optimization::Optimized, true),
            (ProbeState::Armed, not, true),
            (ProbeState::Pending, Optimization::Waiting, true),
            (ProbeState::Disabled, Optimization::Waiting, true),
            (ProbeState::Gone, Optimization::Waiting, true),
        ] {
            let probe = probe(ProbeInfo {
                state,
                optimization,
                ..info(ProbeKind::PRE)
            });
            assert_eq!(is_settled(&probe), settled, "{probe:?}");
        }
    }

    #[test]
    fn every_kind_has_its_own_message() {
        for (engine, wire) in [
            (
                ProbeKind::Instruction {
                    post: true,
                    fault: false,
                },
                Kind::InstructionProbe(v1::InstructionProbe {
                    post: true,
                    fault: false,
                }),
            ),
            (
                ProbeKind::Return { maxactive: Some(8) },
                Kind::ReturnProbe(v1::ReturnProbe {
                    maxactive: 8,
                    rets: false,
                }),
            ),
            (
                ProbeKind::Exits { maxactive: Some(8) },
                Kind::ReturnProbe(v1::ReturnProbe {
                    maxactive: 8,
                    rets: true,
                }),
            ),
            (
                ProbeKind::Watch {
                    len: 4,
                    access: Access::ReadWrite,
                },
                Kind::Watchpoint(v1::Watchpoint {
                    length: 4,
                    reads: true,
                }),
            ),
        ] {
            assert_eq!(probe(info(engine)).kind, Some(wire));
        }
    }
}
