//! The start times of sums.

use std::collections::HashMap;

/// A series of values: the name of its metric, and its labels.
pub type Series = (String, Vec<(String, String)>);

/// Remembers for each series its last value, and since when it has grown from zero. When a VM is made under the name of
/// a former one, its sums start again (OpenTelemetry's metrics data model, "Resets and Gaps").
#[derive(Debug)]
pub struct Starts {
    known: HashMap<Series, Known>,
    /// The time of the last request for values, or before the first request the time of the start, in nanoseconds since
    /// 1970.
    last: u64,
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    start: u64,
    value: f64,
    seen: u64,
}

impl Starts {
    /// Sets the time at which sums begin.
    pub fn new(now: u64) -> Self {
        Self {
            known: HashMap::new(),
            last: now,
            now,
        }
    }

    /// Begins a request for values at this time.
    pub fn begin(&mut self, now: u64) {
        let last = self.now;
        // A series that wasn't in the last request has gone.
        self.known.retain(|_, known| known.seen == last);
        self.last = last;
        self.now = now;
    }

    /// Returns the time since which the series has grown to this value.
    pub fn of(&mut self, series: Series, value: f64) -> u64 {
        let new = Known {
            start: self.last,
            value,
            seen: self.now,
        };
        let known = self.known.entry(series).or_insert(new);
        let start = match value < known.value {
            true => self.last,
            false => known.start,
        };
        *known = Known { start, ..new };
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str) -> Series {
        (name.to_owned(), vec![("vm".to_owned(), "a".to_owned())])
    }

    #[test]
    fn a_sum_begins_before_it_is_first_seen_and_anew_when_it_becomes_less() {
        let mut starts = Starts::new(10);
        for (now, value, start) in [
            (20, 5.0, 10),
            (30, 5.0, 10),
            (40, 9.0, 10),
            (50, 2.0, 40),
            (60, 3.0, 40),
        ] {
            starts.begin(now);
            assert_eq!(starts.of(series("x"), value), start, "at {now}");
        }
    }

    #[test]
    fn a_sum_that_was_not_there_for_a_while_begins_anew() {
        let mut starts = Starts::new(10);
        starts.begin(20);
        assert_eq!(starts.of(series("x"), 1.0), 10);
        starts.begin(30);
        assert_eq!(starts.of(series("y"), 1.0), 20);
        starts.begin(40);
        assert_eq!(starts.of(series("x"), 1.0), 30);
        assert_eq!(starts.known.len(), 2);
    }
}
