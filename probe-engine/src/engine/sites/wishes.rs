//! What the probes of a site want of a jump, and what became of it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::detour::{Follow, Purpose};
use crate::engine::sites::jump::Verdict;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::engine::sites::switches::Switches;
use crate::filter::Filter;
use crate::probe::{Capture, NoJump, Optimization, Options, ProbeKind};
use crate::value::{Value, Values, stack_piece};

impl Site {
    /// What its probes want of a jump, or why they can't have one.
    pub(crate) fn wants_jump(&self, switches: &Switches) -> Result<Purpose, NoJump> {
        if self.milestone.is_some() {
            return Err(NoJump::Milestone);
        }
        let all = self
            .enabled()
            .map(|probe| wants(probe, switches))
            .reduce(|all, one| all?.and(one?))
            .unwrap_or(Err(NoJump::Disabled))?;
        match all.fits() {
            true => Ok(all),
            false => Err(NoJump::ValuesTooLong),
        }
    }
}

/// What one probe wants.
fn wants(probe: &Probe, switches: &Switches) -> Result<Purpose, NoJump> {
    if !matches!(probe.kind, ProbeKind::Watch { .. }) {
        if !probe.options.actions.is_empty() {
            return Err(NoJump::Actions);
        }
        if switches.is_attended(probe.id) {
            return Err(NoJump::Attended);
        }
    }
    match probe.kind {
        ProbeKind::Instruction { .. } if probe.wants_post() => Err(NoJump::PostEvent),
        ProbeKind::Instruction { .. } if probe.wants_fault() => Err(NoJump::FaultEvent),
        ProbeKind::Instruction { .. } | ProbeKind::Return { .. }
            if !switches.may_optimize(probe.id) =>
        {
            Err(NoJump::Asked)
        }
        ProbeKind::Instruction { .. } => {
            // A filter knows its values by their numbers.
            let values = match &probe.options.filter {
                Some(_) => Arc::clone(&probe.options.values),
                None => once(&probe.options.values),
            };
            let purpose = Purpose {
                capture: Some(probe.options.capture),
                values,
                context: probe.options.context,
                filter: probe.options.filter.clone(),
                condition: probe.options.condition.clone(),
                lossless: probe.options.lossless,
                ..Purpose::default()
            };
            Ok(match probe.options.stack {
                0 => purpose,
                _ => with_stack(purpose),
            })
        }
        ProbeKind::Return { .. } => {
            let (at_return, filter_at_return) = at_return(&probe.options);
            Ok(Purpose {
                follow: Some(Follow {
                    records: is_recorded(&probe.options),
                    limit: probe.max_active,
                    lossless: probe.options.lossless,
                }),
                at_return,
                filter_at_return,
                condition: probe.options.condition.clone(),
                followers: vec![probe.id],
                ..Purpose::default()
            })
        }
        ProbeKind::Exits { .. } => Err(NoJump::OwnReturns),
        ProbeKind::Watch { .. } => Err(NoJump::Watchpoint),
    }
}

/// Returns true if a return leaves a record: for an event, or to be counted if it meets a filter.
fn is_recorded(options: &Options) -> bool {
    options.capture.fetches().is_some() || options.filter.is_some()
}

/// What the record of a return has besides registers, and the filter that the return must meet. Values that can be told
/// from registers aren't in the record, except those that the filter looks at.
fn at_return(options: &Options) -> (Values, Option<Arc<Filter>>) {
    if !is_recorded(options) {
        return (Values::default(), None);
    }
    let filter = options.filter.as_deref();
    let looked_at = filter.map_or_else(Vec::new, Filter::values);
    let stack = (options.stack > 0).then(stack_piece);
    let taken = options.values.iter().enumerate();
    let taken = taken.filter(|(index, it)| !it.is_in_registers() || looked_at.contains(index));
    let values = once(&taken.map(|(_, it)| it.clone()).chain(stack).collect());
    let number = |index: usize| {
        let value = options.values.get(index)?;
        values.iter().position(|it| it == value)
    };
    let filter = filter.and_then(|it| it.renumbered(&number));
    (values, filter.map(Arc::new))
}

/// The values, each of them once.
fn once(all: &Values) -> Values {
    let mut seen = HashSet::new();
    let first: Vec<&Value> = all.iter().filter(|value| seen.insert(*value)).collect();
    match first.len() == all.len() {
        true => Arc::clone(all),
        false => first.into_iter().cloned().collect(),
    }
}

/// The same purpose, with what the stack is unwound from.
fn with_stack(purpose: Purpose) -> Purpose {
    match purpose.capture {
        Some(Capture::Event(_)) => Purpose {
            capture: Some(Capture::FULL),
            values: purpose
                .values
                .iter()
                .cloned()
                .chain([stack_piece()])
                .collect(),
            ..purpose
        },
        _ => purpose,
    }
}

/// What a list of probes says of jumps for a probe with this site.
pub(crate) fn optimization(site: Option<&Arc<Site>>) -> Optimization {
    let Some(site) = site else {
        return Optimization::Not(NoJump::NoPlace);
    };
    match &site.verdict {
        _ if !site.armed => Optimization::Not(NoJump::Disarmed),
        Verdict::Jump(_) => Optimization::Optimized,
        Verdict::Waiting => Optimization::Waiting,
        Verdict::Not(why) => Optimization::Not(NoJump::clone(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::Relation;
    use crate::filter::Number;
    use crate::value::{Base, Load, Space, Take};

    fn register(number: u8) -> Value {
        Value {
            base: Base::Register(number),
            loads: Vec::new(),
            take: Take::Word,
        }
    }

    #[test]
    fn a_record_of_a_return_has_what_its_filter_looks_at() {
        let is_seven = |index| Filter::Number {
            of: Number::Value {
                index,
                shift: 0,
                width: 64,
                signed: false,
            },
            relation: Relation::Equal,
            constant: 7,
        };
        let memory = Value {
            take: Take::Memory {
                at: Load {
                    offset: 0,
                    space: Space::Any,
                },
                len: 8,
            },
            ..register(3)
        };
        let mut options = Options {
            values: [register(1), memory.clone(), register(2), register(1)].into(),
            ..Options::default()
        };
        assert_eq!(at_return(&options), ([memory.clone()].into(), None));
        let all = |filters: [Filter; 2]| Filter::All(filters.into());
        options.filter = Some(Arc::new(all([is_seven(2), is_seven(1)])));
        let (values, filter) = at_return(&options);
        assert_eq!(&*values, [memory, register(2)]);
        assert_eq!(filter.as_deref(), Some(&all([is_seven(1), is_seven(0)])));
    }

    #[test]
    fn a_value_that_a_probe_has_twice_is_taken_once() {
        let of = |numbers: &[u8]| numbers.iter().copied().map(register).collect::<Values>();
        for (all, expected) in [
            (&[][..], &[][..]),
            (&[1, 2], &[1, 2]),
            (&[3, 1, 3, 2, 1, 3], &[3, 1, 2]),
        ] {
            assert_eq!(once(&of(all)), of(expected), "{all:?}");
        }
    }
}
