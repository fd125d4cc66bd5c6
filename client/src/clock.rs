//! Times of events by the clock of their server's host.

use vmprobe_proto::v1::ClockSample;

const NANOS: i128 = 1_000_000_000;

/// A guest's time stamp counter, and its host's clock at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostClock {
    sample: ClockSample,
    tsc_hz: u64,
}

impl HostClock {
    /// Makes a clock from a sample, and the counter's frequency in hertz.
    #[must_use]
    pub fn new(sample: ClockSample, tsc_hz: u64) -> Self {
        Self { sample, tsc_hz }
    }

    /// Returns the time of the sample, in nanoseconds since 1970.
    #[must_use]
    pub fn sampled_at(&self) -> u64 {
        self.sample.unix_ns
    }

    /// Returns the time of a counter's value, in nanoseconds since 1970. Times out of range become 0 or the highest
    /// number. If the frequency is unknown, the result is always the sample's time.
    #[must_use]
    pub fn unix_ns(&self, tsc: u64) -> u64 {
        let since = i128::from(tsc) - i128::from(self.sample.tsc);
        let since = (since * NANOS)
            .checked_div(i128::from(self.tsc_hz))
            .unwrap_or(0);
        let time = i128::from(self.sample.unix_ns) + since;
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_tells_moments_before_and_after_the_sample() {
        let sample = ClockSample {
            tsc: 5_000,
            unix_ns: 1_000_000,
        };
        let clock = HostClock::new(sample, 2_000_000_000);
        for (tsc, expected) in [
            (5_000, 1_000_000),
            (7_000, 1_001_000),
            (4_998, 999_999),
            (0, 997_500),
        ] {
            assert_eq!(clock.unix_ns(tsc), expected, "{tsc}");
        }
        assert_eq!(HostClock::new(sample, 0).unix_ns(9), 1_000_000);
        assert_eq!(HostClock::new(sample, 1).unix_ns(u64::MAX), u64::MAX);
        let late = ClockSample {
            tsc: u64::MAX,
            unix_ns: 1,
        };
        assert_eq!(HostClock::new(late, 1).unix_ns(0), 0);
    }
}
