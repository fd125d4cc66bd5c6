//! Probes in the form in which clients ask for them.

use std::borrow::Cow;

use guest_state::{Access, GuestVirtAddr};
use probe_engine::probe::{Options, Place, ProbeKind, ProbeSpec};
use tonic::Status;
use vmprobe_proto::v1;
use vmprobe_proto::v1::probe_spec::{Kind, Place as WirePlace};

use super::{actions, options};
use crate::status::ProbeField;
use crate::{limits, status};

/// Bytes that a watchpoint watches by default.
const WATCH_LENGTH: u8 = 8;

/// Returns the engine's form of a probe. The request has the probe in `field`.
///
/// # Errors
/// `INVALID_ARGUMENT`, naming the wrong field.
pub fn spec(field: ProbeField, probe: &v1::ProbeSpec) -> Result<ProbeSpec, Status> {
    engine_spec(probe)
        .map_err(|wrong| status::invalid(format!("{field}.{}", wrong.field), wrong.why))
}

/// Checks that a batch may have this many probes.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` if it has too many.
pub fn check_batch(probes: usize) -> Result<(), Status> {
    if probes <= limits::PROBES_A_BATCH {
        return Ok(());
    }
    let most = limits::PROBES_A_BATCH;
    Err(status::exhausted_by(
        "probes",
        "probes of one batch",
        format!("{probes} probes in one batch: send at most {most} at a time"),
    ))
}

/// A wrong field of a probe.
struct WrongField {
    field: Cow<'static, str>,
    why: String,
}

fn wrong(field: impl Into<Cow<'static, str>>, why: impl Into<String>) -> WrongField {
    WrongField {
        field: field.into(),
        why: why.into(),
    }
}

fn engine_spec(spec: &v1::ProbeSpec) -> Result<ProbeSpec, WrongField> {
    let place = place(spec)?;
    let kind = kind(spec)?;
    if let (
        ProbeKind::Watch { .. },
        Place::Symbol {
            module: Some(_), ..
        },
    ) = (kind, &place)
    {
        return Err(wrong(
            "symbol.module",
            "a watchpoint can't wait for a module; watch its data by address once it is loaded",
        ));
    }
    Ok(ProbeSpec {
        name: given(&spec.name),
        place,
        kind,
        enabled: vmprobe_spec::is_enabled(spec),
        options: options(spec)?,
    })
}

fn options(spec: &v1::ProbeSpec) -> Result<Options, WrongField> {
    let default = v1::ProbeOptions::default();
    let options = spec.options.as_ref().unwrap_or(&default);
    let options = options::options(options)
        .map_err(|error| wrong(format!("options.{}", error.field), error.why))?;
    let actions = actions::actions(&spec.actions).map_err(|(index, (field, why))| {
        let point = if field.is_empty() { "" } else { "." };
        wrong(format!("actions[{index}]{point}{field}"), why)
    })?;
    Ok(Options {
        actions: actions.into(),
        ..options
    })
}

fn place(spec: &v1::ProbeSpec) -> Result<Place, WrongField> {
    match &spec.place {
        Some(WirePlace::Address(address)) => Ok(Place::Address(GuestVirtAddr(*address))),
        Some(WirePlace::Symbol(place)) => Ok(Place::Symbol {
            module: given(&place.module),
            name: given(&place.symbol)
                .ok_or_else(|| wrong("symbol.symbol", "the name of a symbol is missing"))?,
            offset: place.offset,
        }),
        None => Err(wrong("place", "a probe needs a symbol or an address")),
    }
}

fn kind(spec: &v1::ProbeSpec) -> Result<ProbeKind, WrongField> {
    match spec.kind {
        None => Ok(ProbeKind::PRE),
        Some(Kind::Instruction(v1::InstructionProbe { post, fault })) => {
            Ok(ProbeKind::Instruction { post, fault })
        }
        Some(Kind::Return(v1::ReturnProbe { maxactive, rets })) => {
            let maxactive = Some(maxactive).filter(|maxactive| *maxactive != 0);
            Ok(match rets {
                true => ProbeKind::Exits { maxactive },
                false => ProbeKind::Return { maxactive },
            })
        }
        Some(Kind::Watchpoint(v1::Watchpoint { length, reads })) => {
            let len = match length {
                0 => Some(WATCH_LENGTH),
                1 | 2 | 4 | 8 => u8::try_from(length).ok(),
                _ => None,
            };
            let len = len.ok_or_else(|| {
                wrong(
                    "watchpoint.length",
                    format!("a watchpoint has 1, 2, 4 or 8 bytes, not {length}"),
                )
            })?;
            let access = match reads {
                true => Access::ReadWrite,
                false => Access::Write,
            };
            Ok(ProbeKind::Watch { len, access })
        }
    }
}

fn given(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::fetch::{Fetch, Fetches};
    use probe_engine::probe::Capture;
    use tonic::Code;
    use tonic_types::StatusExt;

    #[test]
    fn definitions_and_the_engine_have_the_same_limits() {
        let engine = probe_engine::probe::MAXACTIVE_MAX;
        assert_eq!(vmprobe_spec::MAXACTIVE_MAX, engine);
    }

    fn specs(list: &'static str, probes: &[v1::ProbeSpec]) -> Result<Vec<ProbeSpec>, Status> {
        check_batch(probes.len())?;
        let probes = probes.iter().enumerate();
        let found = probes.map(|(index, probe)| spec(ProbeField { list, index }, probe));
        found.collect()
    }

    fn with_context() -> Options {
        Options {
            context: true,
            ..Options::default()
        }
    }

    fn at(address: u64) -> v1::ProbeSpec {
        v1::ProbeSpec {
            place: Some(WirePlace::Address(address)),
            ..Default::default()
        }
    }

    fn symbol(module: &str, symbol: &str) -> v1::ProbeSpec {
        v1::ProbeSpec {
            place: Some(WirePlace::Symbol(v1::SymbolPlace {
                symbol: symbol.into(),
                module: module.into(),
                offset: 0,
            })),
            ..Default::default()
        }
    }

    fn of(kind: Kind, spec: v1::ProbeSpec) -> v1::ProbeSpec {
        v1::ProbeSpec {
            kind: Some(kind),
            ..spec
        }
    }

    fn returning(maxactive: u32) -> Kind {
        Kind::Return(v1::ReturnProbe {
            maxactive,
            rets: false,
        })
    }

    fn watching(length: u32) -> Kind {
        Kind::Watchpoint(v1::Watchpoint {
            length,
            reads: false,
        })
    }

    fn asking(register: i32) -> v1::ProbeSpec {
        let options = v1::ProbeOptions {
            capture: v1::Capture::Registers.into(),
            registers: vec![register],
            ..Default::default()
        };
        v1::ProbeSpec {
            options: Some(options),
            ..at(8)
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
            specs("probes", &[at(5)]).unwrap(),
            [ProbeSpec {
                name: None,
                place: Place::Address(GuestVirtAddr(5)),
                kind: ProbeKind::PRE,
                enabled: true,
                options: with_context(),
            }]
        );
    }

    #[test]
    fn a_conversion_keeps_a_probe_s_place_and_kind() {
        let disabled = v1::ProbeSpec {
            enabled: Some(false),
            ..of(returning(0), symbol("m", "f"))
        };
        let found = specs("probes", &[disabled]).unwrap();
        assert_eq!(
            found,
            [ProbeSpec {
                name: None,
                place: Place::Symbol {
                    module: Some("m".into()),
                    name: "f".into(),
                    offset: 0,
                },
                kind: ProbeKind::Return { maxactive: None },
                enabled: false,
                options: with_context(),
            }]
        );
        for (kind, expected) in [
            (returning(7), ProbeKind::Return { maxactive: Some(7) }),
            (
                Kind::Return(v1::ReturnProbe {
                    maxactive: 0,
                    rets: true,
                }),
                ProbeKind::Exits { maxactive: None },
            ),
            (
                watching(0),
                ProbeKind::Watch {
                    len: 8,
                    access: Access::Write,
                },
            ),
            (
                watching(2),
                ProbeKind::Watch {
                    len: 2,
                    access: Access::Write,
                },
            ),
        ] {
            let found = specs("probes", &[of(kind, at(8))]).unwrap();
            assert_eq!(found[0].kind, expected);
        }
    }

    #[test]
    fn a_conversion_keeps_a_probe_s_capture_and_conditions() {
        let found = specs("probes", &[asking(8)]).unwrap();
        let rdi = Capture::Event(Fetches::default().with(Fetch::Register(7)));
        assert_eq!(found[0].options.capture, rdi);
    }

    #[test]
    fn a_wrong_value_names_its_field_and_probe() {
        for (wrong, name) in [
            (v1::ProbeSpec::default(), "place"),
            (symbol("", ""), "symbol.symbol"),
            (of(watching(3), at(8)), "watchpoint.length"),
            (of(watching(264), at(8)), "watchpoint.length"),
            (of(watching(8), symbol("m", "d")), "symbol.module"),
            (asking(18), "options.registers[0]"),
        ] {
            let error = specs("probes", &[at(1), wrong]).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert_eq!(field(&error), format!("probes[1].{name}"));
        }
    }

    #[test]
    fn a_batch_beyond_the_limit_is_refused_whole() {
        let most = limits::PROBES_A_BATCH;
        assert_eq!(specs("probes", &vec![at(1); most]).unwrap().len(), most);
        let error = specs("probes", &vec![at(1); most + 1]).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
    }
}
