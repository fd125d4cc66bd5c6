//! How often probes are hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one probe that every hit changes.
#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    exits: AtomicU64,
}

/// A probe's counters. Those of a batch lie together, four in a line of the processor's caches, which keep more of
/// them than if each were beside the rest of its probe. They are freed with the last probe of the batch.
#[derive(Debug, Clone)]
pub(crate) struct HitCounters {
    of_batch: Arc<[Counts]>,
    index: u32,
}

impl HitCounters {
    /// Those of so many probes.
    pub(crate) fn of_batch(probes: usize) -> impl Iterator<Item = Self> {
        let of_batch: Arc<[Counts]> = (0..probes).map(|_| Counts::default()).collect();
        (0..probes as u32).map(move |index| Self {
            of_batch: Arc::clone(&of_batch),
            index,
        })
    }

    /// Counts hits.
    pub(crate) fn hit(&self, times: u64) {
        self.own().hits.fetch_add(times, Ordering::Relaxed);
    }

    /// Counts an exit from guest mode.
    pub(crate) fn exit(&self) {
        self.own().exits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.own().hits.load(Ordering::Relaxed)
    }

    pub(crate) fn exits(&self) -> u64 {
        self.own().exits.load(Ordering::Relaxed)
    }

    fn own(&self) -> &Counts {
        &self.of_batch[self.index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_of_a_batch_count_each_for_itself() {
        let counters: Vec<_> = HitCounters::of_batch(3).collect();
        counters[1].hit(2);
        counters[1].clone().exit();
        let counts = counters.iter().map(|it| (it.hits(), it.exits()));
        assert_eq!(counts.collect::<Vec<_>>(), [(0, 0), (2, 1), (0, 0)]);
    }
}
