//! Between the protocol's types and the engine's.

use probe_engine::addr::GuestVirtAddr;
use probe_engine::event::Hit;
use probe_engine::probe::{Place, ProbeInfo, ProbeSpec, ProbeState, Strategy};
use probe_engine::symbols::Symbol;
use probe_engine::vcpu::Registers;
use tonic::Status;
use vmprobe_proto::v1;
use vmprobe_proto::v1::probe_spec::Place as WirePlace;

use crate::{limits, status};

/// The engine's form of a batch of probes.
///
/// # Errors
/// `INVALID_ARGUMENT` for a probe without a place, `RESOURCE_EXHAUSTED` for too many.
pub fn specs(specs: &[v1::ProbeSpec]) -> Result<Vec<ProbeSpec>, Status> {
    if specs.len() > limits::PROBES_A_BATCH {
        return Err(Status::resource_exhausted(format!(
            "{} probes in one batch: send at most {} at a time",
            specs.len(),
            limits::PROBES_A_BATCH
        )));
    }
    specs
        .iter()
        .enumerate()
        .map(|(index, probe)| spec(index, probe))
        .collect()
}

fn spec(index: usize, spec: &v1::ProbeSpec) -> Result<ProbeSpec, Status> {
    let place = match &spec.place {
        Some(WirePlace::Address(address)) => Place::Address(GuestVirtAddr(*address)),
        Some(WirePlace::Symbol(place)) if !place.symbol.is_empty() => Place::Symbol {
            name: place.symbol.clone(),
            offset: place.offset,
        },
        Some(WirePlace::Symbol(_)) => {
            return Err(status::invalid(
                format!("probes[{index}].symbol.symbol"),
                "the name of a symbol is missing",
            ));
        }
        None => {
            return Err(status::invalid(
                format!("probes[{index}].place"),
                "a probe needs a symbol or an address",
            ));
        }
    };
    let name = Some(spec.name.clone()).filter(|name| !name.is_empty());
    Ok(ProbeSpec { name, place })
}

/// The protocol's form of a probe.
pub fn probe(info: ProbeInfo) -> v1::Probe {
    let state = match info.state {
        ProbeState::Armed => v1::ProbeState::Armed,
        ProbeState::Gone => v1::ProbeState::Gone,
    };
    let strategy = match info.strategy {
        Strategy::Emulate => v1::Strategy::Emulate,
        Strategy::Step => v1::Strategy::Step,
    };
    v1::Probe {
        id: info.id.0,
        name: info.name,
        address: info.address.0,
        symbol: info.symbol,
        offset: info.offset,
        hits: info.hits,
        missed: info.missed,
        state: state.into(),
        strategy: strategy.into(),
        strategy_reason: info.reason,
        instruction: info.instruction,
    }
}

/// The protocol's form of many probes.
pub fn probes(infos: Vec<ProbeInfo>) -> Vec<v1::Probe> {
    infos.into_iter().map(probe).collect()
}

/// The protocol's form of a hit.
pub fn event(hit: &Hit) -> v1::Event {
    v1::Event {
        probe_id: hit.probe.0,
        vcpu: hit.vcpu.0,
        tsc: hit.tsc.0,
        registers: Some(registers(&hit.registers)),
    }
}

/// The protocol's form of the general registers.
pub fn registers(registers: &Registers) -> v1::Registers {
    let r = registers;
    v1::Registers {
        rax: r.rax,
        rbx: r.rbx,
        rcx: r.rcx,
        rdx: r.rdx,
        rsi: r.rsi,
        rdi: r.rdi,
        rsp: r.rsp,
        rbp: r.rbp,
        r8: r.r8,
        r9: r.r9,
        r10: r.r10,
        r11: r.r11,
        r12: r.r12,
        r13: r.r13,
        r14: r.r14,
        r15: r.r15,
        rip: r.rip,
        rflags: r.rflags,
    }
}

/// The protocol's form of a symbol.
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
    use tonic::Code;
    use tonic_types::StatusExt;

    fn at(address: u64) -> v1::ProbeSpec {
        v1::ProbeSpec {
            name: String::new(),
            place: Some(WirePlace::Address(address)),
        }
    }

    fn field(status: &Status) -> String {
        status.get_details_bad_request().unwrap().field_violations[0]
            .field
            .clone()
    }

    #[test]
    fn an_empty_name_leaves_the_name_to_the_engine() {
        assert_eq!(
            specs(&[at(5)]).unwrap(),
            [ProbeSpec {
                name: None,
                place: Place::Address(GuestVirtAddr(5))
            }]
        );
    }

    #[test]
    fn a_probe_without_a_place_is_named_by_its_index() {
        let nowhere = v1::ProbeSpec::default();
        let error = specs(&[at(1), nowhere]).unwrap_err();
        assert_eq!(
            (error.code(), field(&error).as_str()),
            (Code::InvalidArgument, "probes[1].place")
        );

        let unnamed = v1::ProbeSpec {
            place: Some(WirePlace::Symbol(v1::SymbolPlace::default())),
            ..Default::default()
        };
        let error = specs(&[unnamed]).unwrap_err();
        assert_eq!(field(&error), "probes[0].symbol.symbol");
    }

    #[test]
    fn a_batch_beyond_the_limit_is_refused_whole() {
        let error = specs(&vec![at(1); limits::PROBES_A_BATCH + 1]).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
    }
}
