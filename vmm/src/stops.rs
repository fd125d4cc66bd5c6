//! How often the vCPUs were stopped, when, and for how long.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

/// Ranges that the lengths of stops are counted by. The first is of at most a microsecond, each further one of at most
/// twice as long, and the last of all that is longer: more than 2^21 microseconds, about two seconds.
pub const STOP_LENGTHS: usize = 23;

/// Stops that are remembered one by one.
pub const RECENT_STOPS: usize = 512;

/// How often the vCPUs were stopped, and for how long. Pauses on request don't count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Number of times that a control thread stopped all vCPUs.
    pub count: u64,
    /// Total time of these stops. Each begins before the first vCPU is kicked.
    pub time: Duration,
    /// Time of the longest of these stops.
    pub longest: Duration,
    /// Number of these stops by their lengths, see [`STOP_LENGTHS`].
    pub lengths: [u64; STOP_LENGTHS],
    /// Number of times that all vCPUs but one were stopped, so that this one could step alone.
    pub alone: u64,
    /// Total time of these stops.
    pub alone_time: Duration,
}

/// One stop of all vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentStop {
    /// When it ended, by the host's clock.
    pub end: SystemTime,
    /// How long it took.
    pub time: Duration,
}

/// The sums, and the last stops.
#[derive(Debug, Default)]
pub(crate) struct StopLog {
    sums: Stops,
    recent: VecDeque<RecentStop>,
}

impl StopLog {
    /// Counts a stop of all vCPUs, which has just ended.
    pub(crate) fn add(&mut self, time: Duration) {
        let sums = &mut self.sums;
        sums.count += 1;
        sums.time += time;
        sums.longest = sums.longest.max(time);
        sums.lengths[range_of(time)] += 1;
        if self.recent.len() == RECENT_STOPS {
            self.recent.pop_front();
        }
        let end = SystemTime::now();
        self.recent.push_back(RecentStop { end, time });
    }

    /// Counts a stop of all vCPUs but one.
    pub(crate) fn add_alone(&mut self, time: Duration) {
        self.sums.alone += 1;
        self.sums.alone_time += time;
    }

    pub(crate) fn sums(&self) -> Stops {
        self.sums
    }

    /// The last stops of all vCPUs, at most `most`, the oldest first.
    pub(crate) fn recent(&self, most: usize) -> Vec<RecentStop> {
        let before = self.recent.len().saturating_sub(most);
        self.recent.iter().skip(before).copied().collect()
    }
}

/// The index of the range that a length belongs to.
fn range_of(time: Duration) -> usize {
    let microseconds = time.as_nanos().div_ceil(1000).max(1);
    let range = microseconds.next_power_of_two().ilog2() as usize;
    range.min(STOP_LENGTHS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_counted_in_the_range_that_ends_at_it_or_behind_it() {
        for (nanoseconds, range) in [
            (0, 0),
            (1_000, 0),
            (1_001, 1),
            (2_000, 1),
            (2_001, 2),
            (1_000 << 21, 21),
            ((1_000 << 21) + 1, 22),
            (u64::MAX, 22),
        ] {
            let time = Duration::from_nanos(nanoseconds);
            assert_eq!(range_of(time), range, "{time:?}");
        }
    }

    #[test]
    fn the_last_stops_are_remembered_and_older_ones_only_summed_up() {
        let mut log = StopLog::default();
        let lengths = 1..=RECENT_STOPS as u64 + 10;
        for length in lengths.clone() {
            log.add(Duration::from_micros(length));
            log.add_alone(Duration::from_micros(1));
        }
        let sums = log.sums();
        assert_eq!(sums.count, RECENT_STOPS as u64 + 10);
        assert_eq!(sums.alone, sums.count);
        assert_eq!(sums.time, Duration::from_micros(lengths.clone().sum()));
        assert_eq!(sums.lengths.iter().sum::<u64>(), sums.count);
        let all = log.recent(usize::MAX);
        assert_eq!(all.len(), RECENT_STOPS);
        assert!(all.is_sorted_by_key(|stop| stop.end));
        let last: Vec<_> = log.recent(2).iter().map(|stop| stop.time).collect();
        let expected = [*lengths.end() - 1, *lengths.end()].map(Duration::from_micros);
        assert_eq!(last, expected);
        assert!(log.recent(0).is_empty());
    }
}
