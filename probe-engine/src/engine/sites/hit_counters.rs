//! How often probes are hit.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted of a probe.
#[derive(Debug, Clone, Copy)]
enum Count {
    /// Hits that came with an exit, as most hits of breakpoints do. Hit and exit are counted in one change, as each
    /// change of a counter that vCPUs share takes as long as many instructions.
    HitsAtExits,
    OtherHits,
    OtherExits,
    /// 1 if the probe has been removed.
    Closed,
}

const COUNTS: usize = 4;

/// A probe's counters that every hit changes. They are freed with the last probe of the batch.
#[derive(Debug, Clone)]
pub(crate) struct HitCounters {
    /// The counters of all probes of a batch, one kind after the other. So one line of the processor's caches has, for
    /// eight probes, the counter that most hits change.
    of_batch: Arc<[AtomicU64]>,
    index: u32,
}

impl HitCounters {
    /// Makes the counters of a batch of this many probes.
    pub(crate) fn of_batch(probes: usize) -> impl Iterator<Item = Self> {
        let counters = (0..COUNTS * probes).map(|_| AtomicU64::default());
        let of_batch: Arc<[AtomicU64]> = counters.collect();
        (0..probes as u32).map(move |index| Self {
            of_batch: Arc::clone(&of_batch),
            index,
        })
    }

    /// Has the processor fetch what [`Self::hit_at_exit`] changes, without a wait for it.
    pub(crate) fn fetch(&self) {
        black_box(self.get(Count::HitsAtExits));
    }

    /// Counts a hit and the exit from guest mode that it came with.
    pub(crate) fn hit_at_exit(&self) {
        self.add(Count::HitsAtExits, 1);
    }

    /// Counts hits.
    pub(crate) fn hit(&self, times: u64) {
        self.add(Count::OtherHits, times);
    }

    /// Counts an exit from guest mode.
    pub(crate) fn exit(&self) {
        self.add(Count::OtherExits, 1);
    }

    /// Notes that the probe has been removed.
    pub(crate) fn close(&self) {
        self.counter(Count::Closed).store(1, Ordering::Relaxed);
    }

    /// Returns true if the probe has been removed.
    pub(crate) fn is_closed(&self) -> bool {
        self.get(Count::Closed) != 0
    }

    pub(crate) fn hits(&self) -> u64 {
        self.get(Count::HitsAtExits) + self.get(Count::OtherHits)
    }

    pub(crate) fn exits(&self) -> u64 {
        self.get(Count::HitsAtExits) + self.get(Count::OtherExits)
    }

    fn add(&self, count: Count, times: u64) {
        self.counter(count).fetch_add(times, Ordering::Relaxed);
    }

    fn get(&self, count: Count) -> u64 {
        self.counter(count).load(Ordering::Relaxed)
    }

    fn counter(&self, count: Count) -> &AtomicU64 {
        let probes = self.of_batch.len() / COUNTS;
        &self.of_batch[count as usize * probes + self.index as usize]
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
        counters[0].hit_at_exit();
        counters[2].close();
        let counts = counters
            .iter()
            .map(|it| (it.hits(), it.exits(), it.is_closed()));
        let wanted = [(1, 1, false), (2, 1, false), (0, 0, true)];
        assert_eq!(counts.collect::<Vec<_>>(), wanted);
    }
}
