//! Limits of what a device does in a second.
//!
//! A [`Limiter`] has a bucket of tokens for bytes and one for operations. Tokens drip into a bucket at the limit's
//! rate, and a bucket holds a tenth of a second's. An operation may begin when a token is in each bucket, and then
//! takes all that it needs, so a bucket can owe some: no operation is too long for a bucket. A device that has to wait
//! sets its [`Alarm`], a file that its thread watches, and does nothing until then.

use std::{
    io,
    num::NonZeroU64,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Most that a device does in a second. Nothing is limited by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Bytes that go through it.
    pub bytes: Option<NonZeroU64>,
    /// Requests to a disk, or packets of a network device.
    pub operations: Option<NonZeroU64>,
}

/// Parts of a token that levels are counted in: one drips in a nanosecond at a rate of one token a second.
const PARTS: i128 = 1_000_000_000;
/// A bucket holds the tokens of a second divided by this.
const BURSTS_PER_SECOND: u64 = 10;
/// Longest wait at a time. A device that has to wait longer is woken in between, and waits again.
const LONGEST: Duration = Duration::from_secs(60);

/// Tokens of one kind.
#[derive(Debug)]
struct Bucket {
    /// Tokens a second.
    rate: u64,
    /// Parts of tokens that are in it. Negative: it owes them.
    level: i128,
    /// The time of `level`.
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    fn new(rate: NonZeroU64, now: Instant) -> Self {
        let mut bucket = Self {
            rate: rate.get(),
            level: 0,
            at: now,
        };
        bucket.level = bucket.most();
        bucket
    }

    fn most(&self) -> i128 {
        i128::from((self.rate / BURSTS_PER_SECOND).max(1)) * PARTS
    }

    /// How long it takes until a token is in it. None if there is one.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        let dripped = now.saturating_duration_since(self.at).as_nanos() as i128;
        let rate = i128::from(self.rate);
        self.level = (self.level + dripped.saturating_mul(rate)).min(self.most());
        self.at = now.max(self.at);
        let lacking = PARTS - self.level;
        if lacking <= 0 {
            return None;
        }
        let nanoseconds = (lacking + rate - 1) / rate;
        let wait = u64::try_from(nanoseconds).map_or(LONGEST, Duration::from_nanos);
        Some(wait.min(LONGEST))
    }

    fn take(&mut self, tokens: u64) {
        self.level = self
            .level
            .saturating_sub(i128::from(tokens).saturating_mul(PARTS));
    }
}

/// Keeps a device, or one direction of it, to its limit.
#[derive(Debug)]
pub(super) struct Limiter {
    bytes: Option<Bucket>,
    operations: Option<Bucket>,
}

impl Limiter {
    /// A limiter whose buckets are full.
    pub(super) fn new(limit: RateLimit, now: Instant) -> Self {
        let bucket = |rate: Option<NonZeroU64>| rate.map(|rate| Bucket::new(rate, now));
        Self {
            bytes: bucket(limit.bytes),
            operations: bucket(limit.operations),
        }
    }

    /// How long to wait before the next operation. None if it may begin now.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Duration> {
        let bytes = self.bytes.as_mut().and_then(|bucket| bucket.wait(now));
        let operations = self.operations.as_mut();
        let operations = operations.and_then(|bucket| bucket.wait(now));
        bytes.max(operations)
    }

    /// Takes the tokens of an operation of `bytes` bytes, which has been done.
    pub(super) fn take(&mut self, bytes: u64) {
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes);
        }
        if let Some(bucket) = &mut self.operations {
            bucket.take(1);
        }
    }
}

/// A file that is readable when a time has come (`timerfd_create(2)`).
#[derive(Debug)]
pub(super) struct Alarm {
    file: OwnedFd,
    is_set: bool,
}

impl Alarm {
    /// An alarm that isn't set.
    ///
    /// # Errors
    /// The system has no more of them.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            file,
            is_set: false,
        })
    }

    /// As [`set`](Self::set). Should the system refuse it, that is logged: the device then waits for another event.
    pub(super) fn set_or_tell(&mut self, wait: Option<Duration>) {
        if let Err(error) = self.set(wait) {
            tracing::error!("a device can't wait for a time: {error}");
        }
    }

    /// Sets it to the time after `wait`, or to none, and makes the file unreadable.
    ///
    /// # Errors
    /// The system refuses it, which it does for no time that a limiter tells.
    fn set(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if wait.is_none() && !self.is_set {
            return Ok(());
        }
        // Zeros would be no time.
        let wait = wait.map(|wait| wait.max(Duration::from_nanos(1)));
        self.is_set = wait.is_some();
        let wait = wait.unwrap_or_default();
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let time = Itimerspec {
            it_interval: zero,
            it_value: Timespec {
                tv_sec: wait.as_secs().min(LONGEST.as_secs()) as i64,
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.file, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

    use super::*;

    fn limit(bytes: u64, operations: u64) -> RateLimit {
        RateLimit {
            bytes: NonZeroU64::new(bytes),
            operations: NonZeroU64::new(operations),
        }
    }

    #[test]
    fn what_is_not_limited_never_waits() {
        let now = Instant::now();
        let mut limiter = Limiter::new(RateLimit::default(), now);
        for _ in 0..1000 {
            limiter.take(u64::MAX);
            assert_eq!(limiter.wait(now), None);
        }
    }

    #[test]
    fn an_operation_longer_than_the_bucket_is_done_and_paid_for_afterwards() {
        let now = Instant::now();
        let mut limiter = Limiter::new(limit(1000, 0), now);
        assert_eq!(limiter.wait(now), None);
        // A full bucket has 100 tokens; the next operation needs one.
        limiter.take(1100);
        let wait = Duration::from_millis(1001);
        assert_eq!(limiter.wait(now), Some(wait));
        let before = now + wait - Duration::from_nanos(1);
        assert_eq!(limiter.wait(before), Some(Duration::from_nanos(1)));
        assert_eq!(limiter.wait(now + wait), None);
    }

    #[test]
    fn the_scarcer_kind_of_tokens_decides() {
        let now = Instant::now();
        let mut limiter = Limiter::new(limit(1_000_000, 20), now);
        for _ in 0..2 {
            assert_eq!(limiter.wait(now), None);
            limiter.take(1);
        }
        assert_eq!(limiter.wait(now), Some(Duration::from_millis(50)));
        limiter.take(10_000_000);
        assert!(limiter.wait(now) > Some(Duration::from_secs(9)));
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_gives_no_tokens() {
        let now = Instant::now();
        let mut limiter = Limiter::new(limit(10, 0), now + Duration::from_secs(1));
        limiter.take(1);
        let wait = Some(Duration::from_millis(100));
        assert_eq!(limiter.wait(now), wait);
        assert_eq!(limiter.wait(now + Duration::from_secs(1)), wait);
    }

    #[test]
    fn an_alarm_is_readable_when_its_time_has_come_and_not_after_it_was_taken_back() {
        let mut alarm = Alarm::new().unwrap();
        let epoll = Epoll::new().unwrap();
        let event = EpollEvent::new(EventSet::IN, 0);
        epoll
            .ctl(ControlOperation::Add, alarm.as_raw_fd(), event)
            .unwrap();
        let is_readable_within = |milliseconds| {
            let mut events = [EpollEvent::default()];
            epoll.wait(milliseconds, &mut events).unwrap() == 1
        };
        assert!(!is_readable_within(0));
        for wait in [Duration::ZERO, Duration::from_millis(1)] {
            alarm.set(Some(wait)).unwrap();
            assert!(is_readable_within(-1), "{wait:?}");
        }
        alarm.set(None).unwrap();
        assert!(!is_readable_within(0));
        alarm.set(Some(LONGEST)).unwrap();
        assert!(!is_readable_within(0));
    }

    proptest! {
        /// A device that waits as told gets no more than the rate gives in the time and a bucket holds, and gets it
        /// all.
        #[test]
        fn the_rate_is_kept_over_any_operations(
            bytes in 1000u64..1 << 40,
            operations in 1u64..1 << 20,
            sizes in prop::collection::vec(0u64..1 << 20, 1..200),
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut limiter = Limiter::new(limit(bytes, operations), now);
            let (mut before, mut done) = (0u128, 0u128);
            for size in sizes {
                // A wait is told in parts of a minute at most.
                while let Some(wait) = limiter.wait(now) {
                    now += wait;
                }
                let passed = now.duration_since(start).as_nanos();
                let most = |rate: u64| {
                    u128::from((rate / BURSTS_PER_SECOND).max(1)) + passed * u128::from(rate) / 1_000_000_000
                };
                // What is before this operation is within the limit, and this one is the next.
                prop_assert!(before <= most(bytes), "{} bytes in {} ns", before, passed);
                prop_assert!(done < most(operations), "{} operations in {} ns", done + 1, passed);
                limiter.take(size);
                before += u128::from(size);
                done += 1;
            }
        }
    }
}
