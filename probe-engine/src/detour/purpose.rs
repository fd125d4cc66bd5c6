//! What probes want of a detour.

use std::sync::Arc;

use crate::condition::Comparison;
use crate::fetch::Fetch;
use crate::filter::Filter;
use crate::probe::{Capture, NoJump, ProbeId};
use crate::ring::{Shape, layout};
use crate::value::{Values, encoded_max};

/// What a detour does besides the work of its region: what all probes at its instruction want of it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Purpose {
    /// What a hit leaves behind; `None` if only the call's return is of interest.
    pub capture: Option<Capture>,
    /// What a record has besides registers.
    pub values: Values,
    /// Whether a record tells of the current task.
    pub context: bool,
    /// What a hit must meet besides `condition`; its values are those of `values`. It doesn't apply to the call that
    /// begins here.
    pub filter: Option<Arc<Filter>>,
    /// How the call that begins here is followed, if it is: the region has to be a function's entry, with RSP
    /// at the return address.
    pub follow: Option<Follow>,
    /// What the record of the call's return has besides registers.
    pub at_return: Values,
    /// What the call's return must meet to leave a record; its values are those of `at_return`.
    pub filter_at_return: Option<Arc<Filter>>,
    /// What a hit must meet, all of it.
    pub condition: Vec<Comparison>,
    /// Whether a vCPU whose ring is full traps, instead of counting its hit as lost.
    pub lossless: bool,
    /// The return probes. They make no difference to the code, but a call that the detour follows belongs to them,
    /// however long it takes.
    pub followers: Vec<ProbeId>,
}

/// How a call is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Follow {
    /// Whether its return leaves a record, instead of being counted.
    pub records: bool,
    /// How many calls may be followed at a time.
    pub limit: u32,
    /// Whether a vCPU whose ring is full at the return traps.
    pub lossless: bool,
}

/// What identifies the records, the calls and the counts of a detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The detour's number, for the header of its records and for the calls that it follows.
    pub number: u32,
    /// Its cell in every vCPU's block: of hits when they are only counted, else of lost records.
    pub cell: u32,
}

impl Tag {
    /// The tag of a detour that has the cell of its number.
    pub fn numbered(number: u32) -> Self {
        Self {
            number,
            cell: number,
        }
    }
}

impl Purpose {
    /// What is in a record of a hit; `None` if there is none.
    pub fn shape(&self) -> Option<Shape> {
        let registers = self.capture?.fetches()?;
        // Whether the CPU takes interrupts is part of the context.
        let registers = match self.context {
            true => registers.with(Fetch::Flags),
            false => registers,
        };
        Some(Shape {
            registers,
            context: self.context,
            values: self.values.clone(),
        })
    }

    /// Returns true if records have room for all of it, and so the stack for the values.
    pub(crate) fn fits(&self) -> bool {
        let of_return = 8 * layout::RETURN_WORDS + encoded_max(&self.at_return);
        if of_return > 8 * layout::WORDS_MAX {
            return false;
        }
        let shape = self.shape().unwrap_or_else(|| Shape {
            values: self.values.clone(),
            ..Shape::default()
        });
        shape.fits()
    }

    /// Returns what both purposes want of one detour.
    ///
    /// # Errors
    /// No detour can do both.
    pub(crate) fn and(mut self, other: Self) -> Result<Self, NoJump> {
        if self.condition != other.condition {
            return Err(NoJump::Conditions);
        }
        if self.capture.is_some() && other.capture.is_some() {
            if self.filter != other.filter {
                return Err(NoJump::Conditions);
            }
            if self.values != other.values {
                // A filter knows its values by their numbers.
                if self.filter.is_some() {
                    return Err(NoJump::Conditions);
                }
                self.values = union(&self.values, &other.values);
            }
        } else if other.capture.is_some() {
            (self.values, self.filter) = (other.values, other.filter);
        }
        self.context |= other.context;
        self.capture = match (self.capture, other.capture) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        let at_return = (other.at_return, other.filter_at_return);
        if self.follow.is_none() {
            (self.at_return, self.filter_at_return) = at_return;
        } else if other.follow.is_some()
            && (&self.at_return, &self.filter_at_return) != (&at_return.0, &at_return.1)
        {
            // The reader of the record decides which of the probes the return is of.
            self.at_return = union(&self.at_return, &at_return.0);
            self.filter_at_return = None;
        }
        self.follow = match (self.follow, other.follow) {
            (Some(one), Some(other)) => Some(one.and(other)?),
            (one, other) => one.or(other),
        };
        self.lossless |= other.lossless;
        self.followers.extend(other.followers);
        Ok(self)
    }
}

/// Returns these values, and those of the others that aren't among them.
fn union(values: &Values, others: &Values) -> Values {
    let more = others.iter().filter(|value| !values.contains(value));
    values.iter().chain(more).cloned().collect()
}

impl Follow {
    fn and(self, other: Self) -> Result<Self, NoJump> {
        if self.limit != other.limit {
            return Err(NoJump::MaxActive);
        }
        Ok(Self {
            records: self.records || other.records,
            limit: self.limit,
            lossless: self.lossless || other.lossless,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::{Operand, Relation};
    use crate::fetch::Fetches;
    use crate::filter::Number;
    use crate::value::stack_piece;

    fn hit(capture: Capture) -> Purpose {
        Purpose {
            capture: Some(capture),
            ..Purpose::default()
        }
    }

    fn call(limit: u32, probe: u64) -> Purpose {
        Purpose {
            follow: Some(Follow {
                records: probe == 1,
                limit,
                lossless: probe == 2,
            }),
            followers: vec![ProbeId(probe)],
            ..Purpose::default()
        }
    }

    fn of(number: u8) -> Capture {
        Capture::Event(Fetches::default().with(Fetch::Register(number)))
    }

    #[test]
    fn a_detour_records_what_any_of_its_probes_wants() {
        let both = hit(of(1)).and(hit(of(2))).unwrap();
        assert_eq!(both.capture, Some(of(1).and(of(2))));
        let counted = hit(Capture::Count);
        let both = counted.clone().and(hit(of(2))).unwrap();
        assert_eq!(both.capture, Some(of(2)));
        assert_eq!(counted.clone().and(counted.clone()), Ok(counted.clone()));
        let both = counted.and(call(3, 1)).unwrap();
        assert_eq!(both.capture, Some(Capture::Count));
        assert_eq!(both.follow, call(3, 1).follow);
    }

    #[test]
    fn a_detour_follows_calls_for_all_return_probes_with_the_same_limit() {
        let both = call(3, 1).and(call(3, 2)).unwrap();
        let expected = Follow {
            records: true,
            limit: 3,
            lossless: true,
        };
        assert_eq!(both.follow, Some(expected));
        assert_eq!(both.followers, [ProbeId(1), ProbeId(2)]);
        assert_eq!(call(3, 1).and(call(4, 2)), Err(NoJump::MaxActive));
    }

    #[test]
    fn a_detour_asks_the_filter_of_its_returns_if_all_of_its_return_probes_have_it() {
        let filtered = |constant| Purpose {
            at_return: [stack_piece()].into(),
            filter_at_return: Some(Arc::new(Filter::Number {
                of: Number::Cpu,
                relation: Relation::Equal,
                constant,
            })),
            ..call(3, 1)
        };
        for (one, other, expected) in [
            (filtered(1), filtered(1), filtered(1).filter_at_return),
            (filtered(1), filtered(2), None),
            (filtered(1), call(3, 2), None),
            (call(3, 2), filtered(1), None),
            (filtered(1), hit(of(1)), filtered(1).filter_at_return),
            (hit(of(1)), filtered(1), filtered(1).filter_at_return),
        ] {
            let both = one.and(other).unwrap();
            assert_eq!(both.filter_at_return, expected);
            assert_eq!(both.at_return, filtered(1).at_return);
        }
    }

    #[test]
    fn a_detour_has_one_condition() {
        let on_cpu = Purpose {
            condition: vec![Comparison {
                operand: Operand::Cpu,
                relation: Relation::Equal,
                constant: 1,
                signed: false,
            }],
            ..hit(of(1))
        };
        assert_eq!(on_cpu.clone().and(on_cpu.clone()), Ok(on_cpu.clone()));
        assert_eq!(on_cpu.and(hit(of(1))), Err(NoJump::Conditions));
    }
}
