//! Probes with the same name are one event at several places, so they have the same arguments.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use probe_engine::probe::ProbeSpec;
use tonic::Status;
use vmprobe_arguments::Compiled;

use super::Machine;
use super::asked::Asked;
use crate::status::{self, ProbeField};

impl Machine {
    /// Checks that each probe of a batch has the arguments of the other probes with its name, in number, names and
    /// types (`trace_probe_compare_arg_type` in `kernel/trace/trace_probe.c`). The caller makes sure that no others
    /// come meanwhile.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the first argument that differs.
    pub(super) fn check_events(
        &self,
        specs: &[ProbeSpec],
        asked: &[Arc<Asked>],
        fields: &[ProbeField],
    ) -> Result<(), Status> {
        let mut known: HashMap<&str, Arc<Asked>> = HashMap::new();
        for ((spec, asked), field) in specs.iter().zip(asked).zip(fields) {
            let Some(name) = spec.name.as_deref() else {
                continue;
            };
            let before = match known.entry(name) {
                Entry::Occupied(before) => before.into_mut(),
                Entry::Vacant(unknown) => match self.engine.named(name).first() {
                    Some(id) => unknown.insert(self.asked.asked(*id).unwrap_or_default()),
                    None => {
                        unknown.insert(Arc::clone(asked));
                        continue;
                    }
                },
            };
            let (theirs, own) = (before.arguments(), asked.arguments());
            if let Some(index) = first_difference(theirs, own) {
                let (has, have) = (own.len(), theirs.len());
                let why = format!(
                    "there are probes {name:?} with other arguments ({have}, this one has {has}), and probes of one \
                     name are one event: give it the same number, names and types, or another name"
                );
                let wrong = match index < has {
                    true => format!("{field}.arguments[{index}]"),
                    false => format!("{field}.arguments"),
                };
                return Err(status::invalid(wrong, why));
            }
        }
        Ok(())
    }
}

/// Returns the first argument that isn't the same on both sides. What an argument reads doesn't matter.
fn first_difference(theirs: &[Compiled], own: &[Compiled]) -> Option<usize> {
    let differ = |(one, other): (&Compiled, &Compiled)| {
        let (one, other) = (one.told(), other.told());
        (one.name, one.format, one.size, one.elements)
            != (other.name, other.format, other.size, other.elements)
    };
    let both = theirs.iter().zip(own);
    let index = both.clone().position(differ);
    index.or_else(|| (theirs.len() != own.len()).then_some(both.len()))
}
