//! The wait before a request is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The first wait.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait, unless the receiver asks for another.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait that a receiver can ask for.
const WANTED: Duration = Duration::from_secs(300);

/// Waits that become longer. Each is shortened at random by up to a half, so that many senders don't come at once.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Returns the next wait. `wanted` is the wait that the receiver has asked for.
    pub fn next(&mut self, wanted: Option<Duration>) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        // Each `RandomState` has other keys (std::hash::RandomState).
        let chance = RandomState::new().hash_one(0) as u32;
        let wait = wait.mul_f64(1.0 - 0.5 * f64::from(chance) / f64::from(u32::MAX));
        wanted.map_or(wait, |wanted| wanted.clamp(wait, WANTED))
    }

    /// Begins again with the first wait, after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_become_longer_up_to_a_limit_and_begin_anew() {
        let mut backoff = Backoff::default();
        let mut ends = FIRST;
        for _ in 0..20 {
            let wait = backoff.next(None);
            assert!(wait >= ends / 2 && wait <= ends, "{wait:?} of {ends:?}");
            ends = (ends * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.next(None) <= FIRST);
    }

    #[test]
    fn a_receiver_is_given_the_time_that_it_wants_within_bounds() {
        let minute = Duration::from_secs(60);
        assert_eq!(Backoff::default().next(Some(minute)), minute);
        assert_eq!(Backoff::default().next(Some(Duration::MAX)), WANTED);
        assert!(Backoff::default().next(Some(Duration::ZERO)) >= FIRST / 2);
    }
}
