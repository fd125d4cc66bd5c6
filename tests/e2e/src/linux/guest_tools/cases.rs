//! All cases, and their names.

use super::ours::{Change, Ours};
use super::theirs::Theirs;

/// Whose step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Theirs,
    Ours,
}

/// Steps that each side does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Comes,
    Off,
    On,
    Goes,
}

const STEPS: [Step; 4] = [Step::Comes, Step::Off, Step::On, Step::Goes];

/// One of the guest's tools, one of our probes, one order.
#[derive(Debug, Clone)]
pub struct Case {
    pub theirs: Theirs,
    pub ours: Ours,
    pub change: Change,
    pub order: Vec<(Side, Step)>,
}

/// Returns every order in which the steps of both sides can follow each other: 70.
pub fn orders() -> Vec<Vec<(Side, Step)>> {
    let all = 2 * STEPS.len();
    let sets = (0_u32..1 << all).filter(|set| set.count_ones() as usize == STEPS.len());
    sets.map(|set| {
        let (mut theirs, mut ours) = (STEPS.iter(), STEPS.iter());
        (0..all)
            .filter_map(|at| match set >> at & 1 {
                0 => theirs.next().map(|step| (Side::Theirs, *step)),
                _ => ours.next().map(|step| (Side::Ours, *step)),
            })
            .collect()
    })
    .collect()
}

impl std::fmt::Display for Case {
    /// `kprobe Same, Jump, Disable: t+ o+ t0 t1 o0 o1 t- o-`: the guest's tool comes, our probe
    /// comes, the tool is switched off ...
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {:?}, {:?}:", self.theirs, self.ours, self.change)?;
        for (side, step) in &self.order {
            let side = match side {
                Side::Theirs => 't',
                Side::Ours => 'o',
            };
            let step = match step {
                Step::Comes => '+',
                Step::Off => '0',
                Step::On => '1',
                Step::Goes => '-',
            };
            write!(f, " {side}{step}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_order_is_there_once_and_keeps_each_side_s_own() {
        let orders = orders();
        let texts: BTreeSet<String> = orders.iter().map(|order| format!("{order:?}")).collect();
        assert_eq!((orders.len(), texts.len()), (70, 70));
        for order in &orders {
            for side in [Side::Theirs, Side::Ours] {
                let own = order.iter().filter(|(whose, _)| *whose == side);
                assert!(own.map(|(_, step)| *step).eq(STEPS));
            }
        }
    }
}
