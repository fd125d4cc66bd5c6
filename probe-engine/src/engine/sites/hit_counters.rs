//! How often probes are hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of one probe.
#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    exits: AtomicU64,
    is_closed: AtomicBool,
}

/// A probe's counters that every hit changes. Those of a batch lie together, as the processor's caches keep more of
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

    /// Says that the probe has been removed.
    pub(crate) fn close(&self) {
        self.own().is_closed.store(true, Ordering::Relaxed);
    }

    /// Returns true if the probe has been removed.
    pub(crate) fn is_closed(&self) -> bool {
        self.own().is_closed.load(Ordering::Relaxed)
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
        counters[2].close();
        let counts = counters
            .iter()
            .map(|it| (it.hits(), it.exits(), it.is_closed()));
        let wanted = [(0, 0, false), (2, 1, false), (0, 0, true)];
        assert_eq!(counts.collect::<Vec<_>>(), wanted);
    }
}
