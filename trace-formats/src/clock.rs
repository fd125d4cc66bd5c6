//! When events happened.

use vmprobe_proto::v1::Event;

/// Turns time stamp counters into the guest's own time.
///
/// An event that tells the guest's time teaches the clock how that time and the counter go together, so that
/// the events without a time are on the same scale. Before the first such event the counter's own zero counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    hz: u64,
    /// Nanoseconds of the guest's clock at the counter's zero.
    offset: i128,
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Nanoseconds of the guest's clock.
    Nanoseconds(u64),
    /// Ticks of the time stamp counter, whose frequency isn't known.
    Ticks(u64),
}

impl Time {
    /// Returns the number of nanoseconds or of ticks.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Nanoseconds(number) | Self::Ticks(number) => number,
        }
    }
}

impl Clock {
    /// Makes a clock for a counter of `hz` hertz; 0 where that isn't known.
    pub(crate) fn new(hz: u64) -> Self {
        Self { hz, offset: 0 }
    }

    /// Returns when the event happened.
    pub(crate) fn time(&mut self, event: &Event) -> Time {
        let told = event.context.as_ref().map_or(0, |context| context.time_ns);
        if told != 0 {
            if let Some(counted) = self.nanoseconds(event.tsc) {
                self.offset = i128::from(told) - i128::from(counted);
            }
            return Time::Nanoseconds(told);
        }
        match self.nanoseconds(event.tsc) {
            Some(counted) => {
                let time = (i128::from(counted) + self.offset).max(0);
                Time::Nanoseconds(u64::try_from(time).unwrap_or(u64::MAX))
            }
            None => Time::Ticks(event.tsc),
        }
    }

    /// Returns the nanoseconds from the count `earlier` to the count `tsc`; `None` where the frequency isn't known. It
    /// is 0 if `earlier` is the later one.
    pub(crate) fn duration(self, earlier: u64, tsc: u64) -> Option<u64> {
        self.nanoseconds(tsc.saturating_sub(earlier))
    }

    /// Returns the moment of the count `earlier` if the count `tsc` is at `time`.
    pub(crate) fn earlier(self, earlier: u64, tsc: u64, time: Time) -> u64 {
        let ago = match time {
            Time::Nanoseconds(_) => self.duration(earlier, tsc).unwrap_or(0),
            Time::Ticks(_) => tsc.saturating_sub(earlier),
        };
        time.number().saturating_sub(ago)
    }

    fn nanoseconds(self, ticks: u64) -> Option<u64> {
        let nanoseconds = (u128::from(ticks) * 1_000_000_000).checked_div(u128::from(self.hz))?;
        Some(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_proto::v1::Context;

    use super::*;

    fn at(tsc: u64, time_ns: u64) -> Event {
        Event {
            tsc,
            context: (time_ns != 0).then(|| Context {
                time_ns,
                ..Context::default()
            }),
            ..Event::default()
        }
    }

    #[test]
    fn events_without_a_time_are_on_the_scale_of_those_with_one() {
        let mut clock = Clock::new(2_000_000_000);
        assert_eq!(clock.time(&at(2000, 0)), Time::Nanoseconds(1000));
        assert_eq!(clock.time(&at(4000, 77_000)), Time::Nanoseconds(77_000));
        assert_eq!(clock.time(&at(6000, 0)), Time::Nanoseconds(78_000));
        assert_eq!(clock.time(&at(0, 0)), Time::Nanoseconds(75_000));
        clock.time(&at(u64::MAX, 1));
        assert_eq!(clock.time(&at(0, 0)), Time::Nanoseconds(0));
    }

    #[test]
    fn a_counter_of_unknown_frequency_counts_ticks() {
        let mut clock = Clock::new(0);
        assert_eq!(clock.time(&at(4000, 0)), Time::Ticks(4000));
        assert_eq!(clock.duration(1, 2), None);
        assert_eq!(clock.earlier(3000, 4000, Time::Ticks(4000)), 3000);
        assert_eq!(clock.time(&at(4000, 9)), Time::Nanoseconds(9));
        assert_eq!(clock.earlier(3000, 4000, Time::Nanoseconds(9)), 9);
    }

    #[test]
    fn a_duration_of_decades_does_not_overflow() {
        assert_eq!(Clock::new(1).duration(0, u64::MAX), Some(u64::MAX));
        assert_eq!(Clock::new(1).duration(5, 3), Some(0));
    }
}
