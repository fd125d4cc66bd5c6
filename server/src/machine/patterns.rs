//! Probes on all functions that match a pattern.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use guest_kernel::btf::Btf;
use guest_kernel::symbols::is_part_of_function;
use probe_engine::action::HitAction;
use probe_engine::probe::{Place, ProbeKind, ProbeSpec};
use tonic::{Code, Status};
use vmprobe_proto::v1;
use vmprobe_proto::v1::SymbolPlace;
use vmprobe_proto::v1::probe_spec::{Kind, Place as WirePlace};

use super::Machine;
use super::asked::Asked;
use crate::status::ProbeField;
use crate::{convert, status};

/// The probes of a request, with each probe on a pattern replaced by one for each function that matches.
#[derive(Debug, Default)]
pub struct Expanded {
    pub specs: Vec<v1::ProbeSpec>,
    /// The field of the request that each of them comes from.
    pub fields: Vec<ProbeField>,
}

impl Machine {
    /// Replaces each probe whose symbol is a pattern by one for each function that matches and can be probed. If such a
    /// probe has a name, the others are named `NAME.FUNCTION`.
    ///
    /// # Errors
    /// No such function matches a pattern, or there are too many.
    pub(super) fn expand(
        &self,
        list: &'static str,
        asked: &[v1::ProbeSpec],
        expanded: &mut Expanded,
    ) -> Result<(), Status> {
        for (index, spec) in asked.iter().enumerate() {
            let probe = ProbeField { list, index };
            let Some(place) = pattern(spec) else {
                expanded.specs.push(spec.clone());
                expanded.fields.push(probe);
                continue;
            };
            let field = || format!("{probe}.symbol.symbol");
            let before = expanded.specs.len();
            let kind = kind(spec);
            let mut add = |function: &str| {
                convert::check_batch(expanded.specs.len() + 1)?;
                expanded.specs.push(on_function(spec, place, function));
                expanded.fields.push(probe);
                Ok::<_, Status>(())
            };
            match place.module.as_str() {
                "" => self.functions(&place.symbol, kind).try_for_each(&mut add)?,
                module => {
                    let found = self.functions_in_module(module, &place.symbol, kind);
                    let found = found.ok_or_else(|| {
                        let why = format!(
                            "module {module:?} isn't loaded, so a pattern of its functions matches nothing: load it first"
                        );
                        status::with_field(Code::NotFound, field(), why)
                    })?;
                    found.iter().try_for_each(|name| add(name))?;
                }
            }
            if expanded.specs.len() == before {
                let symbol = &place.symbol;
                let why = match place.module.as_str() {
                    "" => format!(
                        "no function that can be probed matches `{symbol}`: `vmprobe list` shows what matches"
                    ),
                    module => format!(
                        "no function of module {module:?} that can be probed matches `{symbol}`"
                    ),
                };
                return Err(status::with_field(Code::NotFound, field(), why));
            }
        }
        Ok(())
    }

    /// Returns the engine's form of probes, and what they ask for by text.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the wrong field.
    pub(super) fn compile(
        &self,
        batch: &Expanded,
    ) -> Result<(Vec<ProbeSpec>, Vec<Arc<Asked>>), Status> {
        let mut known: HashMap<String, Option<Arc<Btf>>> = HashMap::new();
        let mut module_types = |module: &str| match known.get(module) {
            Some(types) => types.clone(),
            None => {
                let types = self.module_types(module);
                known.insert(module.to_owned(), types.clone());
                types
            }
        };
        let probes = batch.specs.iter().zip(&batch.fields);
        let compiled = probes.map(|(spec, field)| {
            let mut engine_s = convert::spec(*field, spec)?;
            let mut actions = engine_s.options.actions.iter();
            if let Some(index) = actions.position(HitAction::changes_guest) {
                self.may_change_guest(format!("{field}.actions[{index}]"))?;
            }
            let asked = self
                .asked
                .compile(*field, spec, &mut engine_s, &mut module_types)?;
            Ok((engine_s, Arc::new(asked)))
        });
        compiled.collect()
    }

    /// Returns the functions that match a pattern and can be probed. Leaves out a name that several functions have, as
    /// it isn't clear which is meant. Also leaves out padding, and parts of functions that the compiler has put
    /// elsewhere.
    fn functions<'a>(
        &'a self,
        pattern: &'a str,
        kind: ProbeKind,
    ) -> impl Iterator<Item = &'a str> + 'a {
        let symbols = self.engine.symbols();
        let mut seen = HashSet::new();
        let functions = symbols.find_matching(pattern).filter(move |symbol| {
            symbols.is_text(symbol.address)
                && !is_part_of_function(symbol.name)
                && seen.insert(symbol.name)
        });
        functions.map(|symbol| symbol.name).filter(move |name| {
            let place = Place::Symbol {
                module: None,
                name: (*name).to_owned(),
                offset: 0,
            };
            self.engine.can_probe(&self.memory, &place, kind)
        })
    }
}

/// Returns the place of a probe whose symbol is a pattern.
fn pattern(spec: &v1::ProbeSpec) -> Option<&SymbolPlace> {
    match &spec.place {
        Some(WirePlace::Symbol(place)) if vmprobe_spec::is_pattern(&place.symbol) => Some(place),
        _ => None,
    }
}

/// Returns the kind of probe by which it's decided whether a function can have it.
fn kind(spec: &v1::ProbeSpec) -> ProbeKind {
    match spec.kind {
        Some(Kind::Return(_)) => ProbeKind::Return { maxactive: None },
        _ => ProbeKind::PRE,
    }
}

fn on_function(spec: &v1::ProbeSpec, place: &SymbolPlace, function: &str) -> v1::ProbeSpec {
    let name = match spec.name.as_str() {
        "" => String::new(),
        name => format!("{name}.{function}"),
    };
    v1::ProbeSpec {
        name,
        place: Some(WirePlace::Symbol(SymbolPlace {
            symbol: function.to_owned(),
            ..place.clone()
        })),
        ..spec.clone()
    }
}
