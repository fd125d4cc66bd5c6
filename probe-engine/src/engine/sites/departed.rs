//! Breakpoints that were taken out of the text a moment ago, and the probes that were on them.
//!
//! A vCPU may have trapped on a breakpoint that is then taken away without a stop, as when a module is freed. The vCPU
//! executes the instruction that is there again, and its hit is lost.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_state::GuestVirtAddr;

use crate::engine::lock::{Lock, Rank};
use crate::engine::sites::site::{Probes, Site};

/// How many places are remembered at most, and how many changes.
const MOST_PLACES: usize = 1 << 16;
const MOST_CHANGES: usize = 1 << 10;

/// Where a change has taken breakpoints out of the text, and where it has put something into it.
#[derive(Debug)]
pub(crate) struct Turnover {
    /// The probes that were enabled where a breakpoint was, in the order of the addresses.
    gone: Vec<(GuestVirtAddr, Probes)>,
    /// In the order of the addresses.
    come: Vec<GuestVirtAddr>,
}

/// What the last changes have taken away, the youngest first.
#[derive(Debug)]
pub(crate) struct Departed(Lock<VecDeque<Arc<Turnover>>>);

impl Turnover {
    /// Makes the turnover of sites that are in the order of their addresses.
    pub(crate) fn new(gone: &[Arc<Site>], come: &[Arc<Site>]) -> Self {
        let breakpoints = gone.iter().filter(|site| site.has_int3());
        Self {
            gone: breakpoints
                .map(|site| (site.virt, site.active.clone()))
                .collect(),
            come: come.iter().map(|site| site.virt).collect(),
        }
    }

    fn gone_at(&self, at: GuestVirtAddr) -> Option<&Probes> {
        let found = self.gone.binary_search_by_key(&at, |(at, _)| *at);
        Some(&self.gone.get(found.ok()?)?.1)
    }

    fn len(&self) -> usize {
        self.gone.len() + self.come.len()
    }
}

impl Departed {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::Departed, VecDeque::new()))
    }

    /// Remembers a change.
    pub(crate) fn change(&self, turnover: &Arc<Turnover>) {
        let mut last = self.0.lock();
        last.push_front(Arc::clone(turnover));
        keep(&mut last, MOST_PLACES, MOST_CHANGES);
    }

    /// Forgets the oldest while the guest runs, so that the next change has room without forgetting any.
    pub(crate) fn make_room(&self) {
        keep(&mut self.0.lock(), MOST_PLACES / 2, MOST_CHANGES / 2);
    }

    /// The probes of the breakpoint that was at `at`, unless something else has come there since.
    pub(crate) fn at(&self, at: GuestVirtAddr) -> Option<Probes> {
        let concerns = |turnover: &&Arc<Turnover>| {
            turnover.come.binary_search(&at).is_ok() || turnover.gone_at(at).is_some()
        };
        let changes = self.0.lock();
        let last = changes.iter().find(concerns)?;
        match last.come.binary_search(&at) {
            Ok(_) => None,
            Err(_) => last.gone_at(at).cloned(),
        }
    }
}

/// Keeps at most this many places and changes.
fn keep(last: &mut VecDeque<Arc<Turnover>>, places: usize, changes: usize) {
    let mut sum = 0;
    let fits = |turnover: &&Arc<Turnover>| {
        sum += turnover.len();
        sum <= places
    };
    let kept = last.iter().take(changes).take_while(fits).count();
    last.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turnover(gone: &[u64], come: &[u64]) -> Arc<Turnover> {
        Arc::new(Turnover {
            gone: gone
                .iter()
                .map(|at| (GuestVirtAddr(*at), Probes::new()))
                .collect(),
            come: come.iter().copied().map(GuestVirtAddr).collect(),
        })
    }

    #[test]
    fn the_last_change_of_a_place_says_whether_a_breakpoint_has_departed_from_it() {
        let departed = Departed::new();
        let is_known = |departed: &Departed, at| departed.at(GuestVirtAddr(at)).is_some();
        departed.change(&turnover(&[1, 2, 3], &[]));
        assert!(is_known(&departed, 2) && !is_known(&departed, 4));
        departed.change(&turnover(&[], &[2]));
        assert!(!is_known(&departed, 2) && is_known(&departed, 3));
        departed.change(&turnover(&[2], &[3]));
        assert!(is_known(&departed, 2) && !is_known(&departed, 3));
        // A breakpoint becomes a jump.
        departed.change(&turnover(&[2], &[2]));
        assert!(!is_known(&departed, 2));
    }

    #[test]
    fn what_is_remembered_of_changes_is_bounded() {
        let departed = Departed::new();
        for at in 0..2 * MOST_CHANGES as u64 {
            departed.change(&turnover(&[at], &[]));
        }
        assert_eq!(departed.0.lock().len(), MOST_CHANGES);
        departed.make_room();
        assert_eq!(departed.0.lock().len(), MOST_CHANGES / 2);
        assert!(
            departed
                .at(GuestVirtAddr(2 * MOST_CHANGES as u64 - 1))
                .is_some()
        );
        let many: Vec<u64> = (0..MOST_PLACES as u64).collect();
        departed.change(&turnover(&many, &[]));
        assert_eq!(departed.0.lock().len(), 1);
        departed.change(&turnover(&[7], &[]));
        assert_eq!(departed.0.lock().len(), 1, "the larger one goes");
    }
}
