//! What the probes of a site want of a jump, and what became of it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::detour::{Follow, Purpose};
use crate::engine::sites::jump::Verdict;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::engine::sites::switches::Switches;
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
        ProbeKind::Return { .. } => Ok(Purpose {
            follow: Some(Follow {
                records: is_recorded(&probe.options),
                limit: probe.max_active,
                lossless: probe.options.lossless,
            }),
            at_return: at_return(&probe.options),
            condition: probe.options.condition.clone(),
            followers: vec![probe.id],
            ..Purpose::default()
        }),
        ProbeKind::Exits { .. } => Err(NoJump::OwnReturns),
        ProbeKind::Watch { .. } => Err(NoJump::Watchpoint),
    }
}

/// Returns true if a return leaves a record: for an event, or for the host to decide whether it meets a filter.
fn is_recorded(options: &Options) -> bool {
    options.capture.fetches().is_some() || options.filter.is_some()
}

/// What the record of a return has besides registers. What can be told from those is.
fn at_return(options: &Options) -> Values {
    if !is_recorded(options) {
        return Values::default();
    }
    let stack = (options.stack > 0).then(stack_piece);
    let in_memory = options.values.iter().filter(|it| !it.is_in_registers());
    once(&in_memory.cloned().chain(stack).collect())
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

/// The same, and what the stack is unwound from.
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

/// What a list says of a probe whose site is this.
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
    use crate::value::{Base, Take};

    #[test]
    fn a_value_that_a_probe_has_twice_is_taken_once() {
        let register = |number| Value {
            base: Base::Register(number),
            loads: Vec::new(),
            take: Take::Word,
        };
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
