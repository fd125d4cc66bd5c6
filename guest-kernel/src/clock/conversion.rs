//! From the guest's time stamp counter to nanoseconds: the kernel's own arithmetic.

use guest_state::Tsc;

/// How a CPU of the guest turns its counter into a time, by the guest's variables at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    pub(super) counter: Counter,
    pub(super) mode: Mode,
}

/// What `sched_clock` computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counter {
    /// `native_sched_clock` (`arch/x86/kernel/tsc.c`, `__cycles_2_ns`).
    Native {
        multiplier: u32,
        shift: u32,
        /// Nanoseconds to add.
        offset: u64,
    },
    /// `kvm_sched_clock_read` (`arch/x86/kernel/kvmclock.c`; `arch/x86/include/asm/pvclock.h`,
    /// `__pvclock_read_cycles` and `pvclock_scale_delta`).
    Kvm {
        /// What the counter was at `time`.
        counter: u64,
        /// Nanoseconds by the host.
        time: u64,
        multiplier: u32,
        shift: i8,
        /// Nanoseconds that the kernel subtracts: the clock began at 0 when the kernel found it.
        start: u64,
    },
}

/// How `local_clock` makes its time of that of `sched_clock` (`kernel/sched/clock.c`), in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// `sched_clock_running` is off: nothing is added.
    Early,
    /// `__sched_clock_stable` is on: a constant is added.
    Stable { offset: u64 },
    /// The time of the last tick, and what has passed since.
    Ticks {
        /// The time of the last tick by the kernel's timekeeping.
        time: u64,
        /// `sched_clock` at the last tick.
        raw: u64,
        /// The earliest and the latest time that the kernel allows.
        bounds: Option<(u64, u64)>,
    },
}

impl Conversion {
    /// Returns the nanoseconds by the clock of the guest's log, as the guest would compute them with the variables that
    /// were read: what `printk` has as its time (`local_clock`).
    ///
    /// Use it for a counter of the moment when the variables were read; for another one see [`Self::lasts`].
    pub fn ns(&self, tsc: Tsc) -> u64 {
        let now = self.counter.ns(tsc);
        match self.mode {
            Mode::Early => now,
            Mode::Stable { offset } => now.wrapping_add(offset),
            Mode::Ticks { time, raw, bounds } => {
                let since = now.wrapping_sub(raw);
                match bounds {
                    None => time.wrapping_add(since),
                    Some((least, most)) => {
                        let since = since.cast_signed().max(0).cast_unsigned();
                        earlier(later(time.wrapping_add(since), least), most)
                    }
                }
            }
        }
    }

    /// Nanoseconds by the guest's `sched_clock`, which is what ftrace's clock `local` shows
    /// (`kernel/trace/trace_clock.c`, `trace_clock_local`). It differs from [`Self::ns`] by a constant while the
    /// counter is stable, and otherwise by what the kernel corrects.
    pub fn trace_ns(&self, tsc: Tsc) -> u64 {
        self.counter.ns(tsc)
    }

    /// Returns true if the conversion is good for counters of other moments, too, and on all CPUs: the kernel has found
    /// its counter to be stable. The kernel can still take that back, or its host set the clock anew, so read the
    /// variables again from time to time.
    ///
    /// Otherwise the kernel corrects the clock with each of its ticks, on each CPU by itself, and a conversion
    /// is exact up to the next tick.
    pub fn lasts(&self) -> bool {
        matches!(self.mode, Mode::Stable { .. })
    }

    /// Returns the conversion without the bounds that the kernel keeps to between two ticks. Use it for counters of
    /// some time before or after the reading, where the conversion doesn't last. Its error is what the kernel corrects
    /// its clock by in the meantime.
    #[must_use]
    pub fn unbounded(self) -> Self {
        let mode = match self.mode {
            Mode::Ticks { time, raw, .. } => Mode::Ticks {
                time,
                raw,
                bounds: None,
            },
            mode => mode,
        };
        Self { mode, ..self }
    }
}

impl Counter {
    fn ns(self, tsc: Tsc) -> u64 {
        let tsc = tsc.0;
        match self {
            Self::Native {
                multiplier,
                shift,
                offset,
            } => {
                let product = u128::from(tsc) * u128::from(multiplier);
                let scaled = product.checked_shr(shift).unwrap_or(0);
                offset.wrapping_add(scaled as u64)
            }
            Self::Kvm {
                counter,
                time,
                multiplier,
                shift,
                start,
            } => {
                let passed = tsc.wrapping_sub(counter).cast_signed();
                let distance = scale(passed.unsigned_abs(), multiplier, shift);
                // An event can be older than what the host wrote last.
                let now = if passed < 0 {
                    time.wrapping_sub(distance)
                } else {
                    time.wrapping_add(distance)
                };
                now.wrapping_sub(start)
            }
        }
    }
}

/// Converts a number of counts to nanoseconds.
fn scale(counts: u64, multiplier: u32, shift: i8) -> u64 {
    let by = u32::from(shift.unsigned_abs());
    let shifted = if shift < 0 {
        counts.checked_shr(by)
    } else {
        counts.checked_shl(by)
    };
    let product = u128::from(shifted.unwrap_or(0)) * u128::from(multiplier);
    (product >> 32) as u64
}

/// Returns the later of two times, which may have wrapped around (`wrap_max`).
pub(super) fn later(a: u64, b: u64) -> u64 {
    if a.wrapping_sub(b).cast_signed() > 0 {
        a
    } else {
        b
    }
}

/// Returns the earlier of two times (`wrap_min`).
fn earlier(a: u64, b: u64) -> u64 {
    if a.wrapping_sub(b).cast_signed() < 0 {
        a
    } else {
        b
    }
}
