//! How long something took, as a text.

use std::fmt;

/// Characters of the longest bar.
const BAR: usize = 40;

/// Durations, counted by powers of two of nanoseconds.
///
/// Its text has a line for each range from the shortest to the longest duration:
///
/// ```text
///  512 ns .. 1.02 us            2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
/// 1.02 us .. 2.05 us            0 |                                        |
/// 2.05 us .. 4.10 us            1 |@@@@@@@@@@@@@@@@@@@@                    |
/// 3 calls, shortest 512 ns, average 1.34 us, longest 3.00 us
/// ```
///
/// A range includes its lower bound and not its upper one. Bounds and figures have three digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The first is for 0, each other one at n for 2^(n-1) up to 2^n nanoseconds.
    counts: [u64; 65],
    sum: u128,
    shortest: u64,
    longest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; 65],
            sum: 0,
            shortest: u64::MAX,
            longest: 0,
        }
    }
}

/// One range of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its lower bound, which is in it.
    pub from: u128,
    /// Its upper bound, which isn't.
    pub to: u128,
    /// How many durations are in it.
    pub count: u64,
}

impl Histogram {
    /// Counts a duration in nanoseconds.
    pub fn add(&mut self, nanoseconds: u64) {
        let at = usize::try_from(u64::BITS - nanoseconds.leading_zeros()).unwrap_or(0);
        if let Some(count) = self.counts.get_mut(at) {
            *count = count.saturating_add(1);
        }
        self.sum = self.sum.saturating_add(nanoseconds.into());
        self.shortest = self.shortest.min(nanoseconds);
        self.longest = self.longest.max(nanoseconds);
    }

    /// How many durations it has.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the ranges from the shortest to the longest duration; none if there is no duration.
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        let is_used = |count: &u64| *count > 0;
        let first = self.counts.iter().position(is_used).unwrap_or(0);
        let last = self.counts.iter().rposition(is_used);
        let ranges = self.counts.iter().enumerate().skip(first);
        let used = ranges.take(last.map_or(0, |last| last - first + 1));
        used.map(|(at, count)| {
            let (from, to) = match at {
                0 => (0, 1),
                _ => (1 << (at - 1), 1 << at),
            };
            let count = *count;
            Range { from, to, count }
        })
    }

    /// The shortest duration in nanoseconds; `None` if there is no duration.
    #[must_use]
    pub fn shortest(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.shortest)
    }

    /// The longest duration in nanoseconds; `None` if there is no duration.
    #[must_use]
    pub fn longest(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.longest)
    }

    /// The average in nanoseconds; `None` if there is no duration.
    #[must_use]
    pub fn average(&self) -> Option<u64> {
        let average = self.sum.checked_div(self.count().into())?;
        u64::try_from(average).ok()
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        if count == 0 {
            return writeln!(f, "no calls");
        }
        let most = self.counts.iter().copied().max().unwrap_or(0);
        for Range { from, to, count } in self.ranges() {
            let length = u128::from(count) * BAR as u128 / u128::from(most.max(1));
            let bar = "@".repeat(usize::try_from(length).unwrap_or(BAR));
            writeln!(
                f,
                "{:>7} .. {:<7} {count:>12} |{bar:<BAR$}|",
                duration(from),
                duration(to)
            )?;
        }
        writeln!(
            f,
            "{count} {}, shortest {}, average {}, longest {}",
            if count == 1 { "call" } else { "calls" },
            duration(self.shortest.into()),
            duration(self.sum / u128::from(count)),
            duration(self.longest.into())
        )
    }
}

/// Returns nanoseconds with three digits and a unit: `512 ns`, `1.02 us`, `33.6 ms`, `137 s`.
fn duration(nanoseconds: u128) -> String {
    let (unit, scale) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..999_500 => ("us", 1_000),
        999_500..999_500_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    // Rounded to the digits that are shown.
    let hundredths = (nanoseconds * 100 + scale / 2) / scale;
    let tenths = (nanoseconds * 10 + scale / 2) / scale;
    if hundredths < 1_000 {
        format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
    } else if tenths < 1_000 {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    } else {
        format!("{} {unit}", (nanoseconds + scale / 2) / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_between_the_shortest_and_the_longest_has_a_line() {
        let mut histogram = Histogram::default();
        for nanoseconds in [512, 512, 3000] {
            histogram.add(nanoseconds);
        }
        assert_eq!(
            histogram.to_string(),
            " 512 ns .. 1.02 us            2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
1.02 us .. 2.05 us            0 |                                        |
2.05 us .. 4.10 us            1 |@@@@@@@@@@@@@@@@@@@@                    |
3 calls, shortest 512 ns, average 1.34 us, longest 3.00 us
"
        );
    }

    #[test]
    fn the_ends_of_the_scale_have_ranges_too() {
        assert_eq!(Histogram::default().to_string(), "no calls\n");
        let mut histogram = Histogram::default();
        histogram.add(0);
        assert!(
            histogram
                .to_string()
                .starts_with("   0 ns .. 1 ns               1 |@")
        );
        histogram.add(u64::MAX);
        let text = histogram.to_string();
        assert_eq!(text.lines().count(), 66);
        assert!(
            text.contains("9223372037 s .. 18446744074 s            1 |@"),
            "{text}"
        );
    }

    #[test]
    fn a_bound_belongs_to_the_range_that_it_begins() {
        for (nanoseconds, line) in [
            (1, "   1 ns .. 2 ns "),
            (2, "   2 ns .. 4 ns "),
            (1024, "1.02 us .. 2.05 us "),
        ] {
            let mut histogram = Histogram::default();
            histogram.add(nanoseconds);
            assert!(histogram.to_string().starts_with(line), "{histogram}");
        }
    }

    #[test]
    fn durations_have_three_digits() {
        for (nanoseconds, text) in [
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_995, "10.0 us"),
            (33_554, "33.6 us"),
            (137_438, "137 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (999_500_000, "1.00 s"),
            (17_179_869_184, "17.2 s"),
        ] {
            assert_eq!(duration(nanoseconds), text);
        }
    }
}
