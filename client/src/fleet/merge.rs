//! Events of many sources in the order of their times.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// Puts events of many sources in order. Each source reports its events in order, and how far it has come when it has
/// no events. An event waits until all sources have come as far, except for silent sources.
#[derive(Debug)]
pub(super) struct Merge<T> {
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    /// The number of events so far, by which events of the same time keep their order.
    count: u64,
    /// How far each source has come that isn't silent.
    sources: HashMap<u64, u64>,
    /// The same values in order.
    reached: BTreeSet<(u64, u64)>,
    /// The time of the last event that was returned.
    told: u64,
    late: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    time: u64,
    number: u64,
    event: T,
}

impl<T> Waiting<T> {
    fn key(&self) -> (u64, u64) {
        (self.time, self.number)
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T> Default for Merge<T> {
    fn default() -> Self {
        Self {
            waiting: BinaryHeap::new(),
            count: 0,
            sources: HashMap::new(),
            reached: BTreeSet::new(),
            told: 0,
            late: 0,
        }
    }
}

impl<T> Merge<T> {
    /// Adds an event of a source.
    pub fn push(&mut self, source: u64, time: u64, event: T) {
        self.reach(source, time);
        let waiting = Waiting {
            time,
            number: self.count,
            event,
        };
        self.count += 1;
        self.waiting.push(Reverse(waiting));
    }

    /// Notes that a source has come as far as this time. From now on, events of other sources wait for it.
    pub fn reach(&mut self, source: u64, time: u64) {
        let before = self.sources.get(&source).copied();
        let time = before.map_or(time, |before| before.max(time));
        if before == Some(time) {
            return;
        }
        self.silence(source);
        self.sources.insert(source, time);
        self.reached.insert((time, source));
    }

    /// Stops waiting for a source until it reports something again.
    pub fn silence(&mut self, source: u64) {
        if let Some(time) = self.sources.remove(&source) {
            self.reached.remove(&(time, source));
        }
    }

    /// Returns the earliest event, if all sources have come as far.
    pub fn pop(&mut self) -> Option<T> {
        let Reverse(first) = self.waiting.peek()?;
        let least = self.reached.first().map(|(time, _)| *time);
        if least.is_some_and(|least| first.time > least) {
            return None;
        }
        let Reverse(first) = self.waiting.pop()?;
        match first.time < self.told {
            true => self.late += 1,
            false => self.told = first.time,
        }
        Some(first.event)
    }

    /// Returns how many events were returned after later ones, as their source counted as silent.
    pub fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_waits_until_all_sources_have_come_as_far() {
        let mut merge = Merge::default();
        merge.reach(1, 0);
        merge.reach(2, 0);
        merge.push(1, 10, 'a');
        merge.push(1, 30, 'd');
        assert_eq!(merge.pop(), None);
        merge.push(2, 20, 'b');
        assert_eq!(merge.pop(), Some('a'));
        assert_eq!(merge.pop(), Some('b'));
        assert_eq!(merge.pop(), None);
        // Events of the same time are returned as they came.
        merge.push(2, 30, 'e');
        merge.reach(2, 25);
        assert_eq!((merge.pop(), merge.pop()), (Some('d'), Some('e')));
        assert_eq!((merge.pop(), merge.late()), (None, 0));
    }

    #[test]
    fn nobody_waits_for_a_silent_source_and_what_it_tells_later_is_late() {
        let mut merge = Merge::default();
        merge.reach(1, 5);
        merge.push(2, 10, 'b');
        assert_eq!(merge.pop(), None);
        merge.silence(1);
        assert_eq!(merge.pop(), Some('b'));
        merge.push(1, 7, 'a');
        assert_eq!((merge.pop(), merge.late()), (Some('a'), 1));
        merge.push(2, 20, 'c');
        assert_eq!(merge.pop(), None);
        merge.reach(1, 20);
        assert_eq!((merge.pop(), merge.late()), (Some('c'), 1));
    }

    #[test]
    fn events_of_many_sources_are_in_order_however_they_come() {
        const SOURCES: u64 = 200;
        const EACH: u64 = 50;
        let mut merge = Merge::default();
        (0..SOURCES).for_each(|source| merge.reach(source, 0));
        let mut told = Vec::new();
        for round in 0..EACH {
            for source in (0..SOURCES).rev() {
                let time = 1 + round * SOURCES + (source * 7919) % SOURCES;
                merge.push(source, time, time);
                told.extend(std::iter::from_fn(|| merge.pop()));
            }
        }
        (0..SOURCES).for_each(|source| merge.silence(source));
        told.extend(std::iter::from_fn(|| merge.pop()));
        assert_eq!(told, (1..=SOURCES * EACH).collect::<Vec<_>>());
        assert_eq!(merge.late(), 0);
    }
}
