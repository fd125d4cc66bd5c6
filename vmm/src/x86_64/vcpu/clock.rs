//! A guest's time stamp counter beside the time of the host's clock.

use std::time::{Duration, Instant, SystemTime};

use kvm_ioctls::VcpuFd;

use super::msr;

/// The number of samples, of which the one that took the least time counts.
const TRIES: usize = 8;
const NANOS: u128 = 1_000_000_000;

/// The host's counter.
pub(crate) fn host_tsc() -> u64 {
    // SAFETY: every x86-64 CPU has rdtsc, and Linux doesn't forbid it to processes
    // (PR_SET_TSC) unless asked to.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The same moment by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The guest's time stamp counter, as KVM has set it up. A guest may have changed its own since.
    pub tsc: u64,
    /// The host's clock, as the time since 1970.
    pub since_epoch: Duration,
}

/// Tells what a guest's counter is at a moment of the host's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestClock {
    /// What is added to the host's counter, where that stays the same.
    offset: Option<u64>,
    /// The counter at a moment, and its hertz.
    begin: (u64, Instant),
    hz: u64,
}

impl GuestClock {
    /// The clock of a vCPU, whose counter runs from its creation on.
    pub fn new(vcpu: &VcpuFd) -> Self {
        let counter = msr::guest_tsc(vcpu).unwrap_or_else(host_tsc);
        Self {
            offset: msr::steady_tsc_offset(vcpu),
            begin: (counter, Instant::now()),
            hz: vcpu.get_tsc_khz().map_or(0, |khz| u64::from(khz) * 1000),
        }
    }

    /// Hertz of the counter; 0 where KVM doesn't tell it.
    pub fn hz(&self) -> u64 {
        self.hz
    }

    /// Both clocks now.
    pub fn now(&self) -> ClockSample {
        let sample = || {
            let before = self.counter();
            let since_epoch = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            let took = self.counter().wrapping_sub(before);
            let tsc = before.wrapping_add(took / 2);
            (took, ClockSample { tsc, since_epoch })
        };
        let mut best = sample();
        for _ in 1..TRIES {
            let next = sample();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    fn counter(&self) -> u64 {
        if let Some(offset) = self.offset {
            return host_tsc().wrapping_add(offset);
        }
        let (counter, since) = self.begin;
        let ticks = since.elapsed().as_nanos() * u128::from(self.hz) / NANOS;
        counter.wrapping_add(ticks as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_go_on_at_their_rates() {
        let begin = (5_000, Instant::now());
        for offset in [None, Some(u64::MAX)] {
            let clock = GuestClock {
                offset,
                begin,
                hz: 1_000_000_000,
            };
            let before = SystemTime::UNIX_EPOCH.elapsed().unwrap();
            let (one, next) = (clock.now(), clock.now());
            let after = SystemTime::UNIX_EPOCH.elapsed().unwrap();
            assert!(before <= one.since_epoch && next.since_epoch <= after);
            assert!(one.tsc < next.tsc, "{one:?} {next:?}");
            if offset.is_none() {
                // A counter of a gigahertz counts nanoseconds.
                let longest = (after - before).as_nanos() as u64;
                assert!(one.tsc >= 5_000 && next.tsc - one.tsc <= longest);
            }
        }
    }
}
