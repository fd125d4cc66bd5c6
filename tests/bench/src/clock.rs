//! Time of single hits: the processor's time stamp counter, less what reading it costs.

use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long the counter's rate is measured.
const CALIBRATION: Duration = Duration::from_millis(200);
/// Readings by which the cost of one is found.
const READINGS: usize = 100_001;

/// The counter: its rate, and the ticks of two readings.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    ticks_a_ns: f64,
    own: u64,
}

impl Clock {
    /// Measures the counter against the system's clock. Takes 0.2 s.
    pub fn new() -> Self {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (last, passed) = (ticks(), start.elapsed());
        let mut readings: Vec<u64> = (0..READINGS).map(|_| raw(|| black_box(())).0).collect();
        readings.sort_unstable();
        Self {
            ticks_a_ns: (last - first) as f64 / passed.as_nanos() as f64,
            own: readings[READINGS / 2],
        }
    }

    /// Runs something and returns how many ticks it took, without the clock's own.
    pub fn time<R>(&self, work: impl FnOnce() -> R) -> (u64, R) {
        let (ticks, result) = raw(work);
        (self.without_own(ticks, 1), result)
    }

    /// Returns `ticks` without those that `pairs` pairs of readings take.
    pub fn without_own(&self, ticks: u64, pairs: u64) -> u64 {
        ticks.saturating_sub(self.own * pairs)
    }

    /// The counter.
    pub fn now(&self) -> u64 {
        ticks()
    }

    /// Ticks in nanoseconds.
    pub fn nanoseconds(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_a_ns
    }

    /// The time of the clock's own two readings, in nanoseconds. Results don't include it.
    pub fn own_nanoseconds(&self) -> f64 {
        self.nanoseconds(self.own)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

fn raw<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let start = ticks();
    let result = work();
    (ticks().wrapping_sub(start), result)
}

/// The counter. Nothing before it is still under way, and nothing after it has begun (SDM vol. 2, RDTSC and
/// LFENCE).
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and it does nothing but wait.
    unsafe { _mm_lfence() };
    // SAFETY: user mode may read the counter unless CR4.TSD is set, which Linux does only for
    // processes that ask for it.
    let ticks = unsafe { _rdtsc() };
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

/// The processor's name (CPUID leaves 80000002h to 80000004h).
pub fn processor() -> String {
    let mut name = Vec::new();
    for leaf in 0x8000_0002..=0x8000_0004 {
        let found = __cpuid(leaf);
        for word in [found.eax, found.ebx, found.ecx, found.edx] {
            name.extend(word.to_le_bytes());
        }
    }
    name.retain(|byte| *byte != 0);
    String::from_utf8_lossy(&name).trim().to_owned()
}
