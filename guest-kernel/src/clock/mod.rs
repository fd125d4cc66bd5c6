//! The clock of the guest's own log: what the kernel's variables make of the time stamp counter.
//!
//! `printk` and the scheduler go by `local_clock` (`kernel/printk/printk.c`, `vprintk_store`;
//! `kernel/sched/clock.c`). That is `sched_clock` and something added; `sched_clock` is KVM's clock in a guest
//! that was offered one, or the counter scaled (`arch/x86/kernel/kvmclock.c`, `arch/x86/kernel/tsc.c`).
//! All of it can be read, so the counter of an event says what time the guest would have told.

mod conversion;
#[cfg(test)]
mod tests;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr};

pub use conversion::Conversion;
use conversion::{Counter, Mode, later};

use crate::btf::Btf;
use crate::kernel_memory::KernelMemory;
use crate::percpu;
use crate::symbols::Symbols;

/// How many times to try to read a structure that may change while it is read.
const TRIES: usize = 8;
/// Nanoseconds in a second: no kernel ticks more rarely (`CONFIG_HZ` is 100 or more on x86).
const MAX_TICK: u64 = 1_000_000_000;

/// Where a kernel has the variables of its clock.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The function that `sched_clock` calls; `None` in a kernel without `CONFIG_PARAVIRT`, which calls its own.
    chosen: Option<GuestVirtAddr>,
    native: Option<Native>,
    kvm: Option<Kvm>,
    /// Counts of the static keys.
    running: GuestVirtAddr,
    stable: GuestVirtAddr,
    /// `__sched_clock_offset` and `__gtod_offset`.
    stable_offset: GuestVirtAddr,
    ticks_offset: GuestVirtAddr,
    ticks: Ticks,
    jiffies: Option<Jiffies>,
}

/// The variables of `native_sched_clock`.
#[derive(Debug, Clone, Copy)]
struct Native {
    function: GuestVirtAddr,
    /// Count of the static key.
    in_use: GuestVirtAddr,
    /// `cyc2ns` of each CPU: what to add to the start of its variables.
    variable: i32,
    /// Offset of two copies. The sequence number (`number`) says which one is whole.
    copies: u64,
    copy_size: u64,
    number: u64,
    /// Offsets in a copy.
    multiplier: u64,
    shift: u64,
    offset: u64,
}

/// The variables of `kvm_sched_clock_read`.
#[derive(Debug, Clone, Copy)]
struct Kvm {
    function: GuestVirtAddr,
    /// `hv_clock_per_cpu`: where the host tells each CPU the time.
    variable: i32,
    /// `kvm_sched_clock_offset`
    start: GuestVirtAddr,
}

/// `sched_clock_data` of each CPU.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    variable: i32,
    raw: u64,
    time: u64,
    last: u64,
}

/// The members of `clocksource_jiffies` that tell how long a tick is (`kernel/time/jiffies.c`).
#[derive(Debug, Clone, Copy)]
struct Jiffies {
    multiplier: GuestVirtAddr,
    shift: GuestVirtAddr,
}

impl Clock {
    /// Finds where a kernel has its clock; `None` where symbols or types don't tell.
    pub fn find(symbols: &Symbols, btf: &Btf) -> Option<Self> {
        let address = |name: &str| Some(symbols.get(name)?.address);
        let member = |of: &str, path: &str, size: u64| {
            let member = btf.member(of, path).ok()?;
            let whole = member.size == size && member.bits.is_none();
            whole.then_some(member.offset)
        };
        let enabled = member("static_key", "enabled", 4)?;
        let key = |name: &str| Some(address(name)?.wrapping_add(enabled));
        let native = || {
            let copies = btf.member("cyc2ns", "data").ok()?;
            let copy_size = copies.array.filter(|array| array.count == 2)?.element_size;
            Some(Native {
                function: address("native_sched_clock")?,
                in_use: key("__use_tsc")?,
                variable: percpu::variable(symbols, "cyc2ns", 0)?,
                copies: copies.offset,
                copy_size,
                number: member("cyc2ns", "seq", 4)?,
                multiplier: member("cyc2ns_data", "cyc2ns_mul", 4)?,
                shift: member("cyc2ns_data", "cyc2ns_shift", 4)?,
                offset: member("cyc2ns_data", "cyc2ns_offset", 8)?,
            })
        };
        let kvm = || {
            Some(Kvm {
                function: address("kvm_sched_clock_read")?,
                variable: percpu::variable(symbols, "hv_clock_per_cpu", 0)?,
                start: address("kvm_sched_clock_offset")?,
            })
        };
        let jiffies = || {
            let source = address("clocksource_jiffies")?;
            let part = |name| Some(source.wrapping_add(member("clocksource", name, 4)?));
            Some(Jiffies {
                multiplier: part("mult")?,
                shift: part("shift")?,
            })
        };
        let chosen = match address("__SCK__pv_sched_clock") {
            Some(call) => Some(call.wrapping_add(member("static_call_key", "func", 8)?)),
            None => None,
        };
        Some(Self {
            chosen,
            native: native(),
            kvm: kvm(),
            running: key("sched_clock_running")?,
            stable: key("__sched_clock_stable")?,
            stable_offset: address("__sched_clock_offset")?,
            ticks_offset: address("__gtod_offset")?,
            ticks: Ticks {
                variable: percpu::variable(symbols, "sched_clock_data", 0)?,
                raw: member("sched_clock_data", "tick_raw", 8)?,
                time: member("sched_clock_data", "tick_gtod", 8)?,
                last: member("sched_clock_data", "clock", 8)?,
            },
            jiffies: jiffies(),
        })
    }

    /// Reads how a CPU turns its counter into a time now. `None` while the kernel has no clock yet (its log says 0
    /// then), where it uses an unknown clock, and where the variables can't be read.
    ///
    /// `variables` is the start of the CPU's variables: GS base of a vCPU in the kernel, or what
    /// [`percpu::offsets`] tells. `tables` are tables that map the kernel. It takes some fifteen small reads
    /// of guest memory.
    pub fn read(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        variables: GuestVirtAddr,
    ) -> Option<Conversion> {
        let guest = Reader {
            memory: KernelMemory { memory, tables },
            variables,
        };
        let counter = self.counter(&guest)?;
        let mode = if guest.is_on(self.stable)? {
            Mode::Stable {
                offset: guest.u64(self.stable_offset)?,
            }
        } else if guest.is_on(self.running)? {
            self.ticks(&guest)?
        } else {
            Mode::Early
        };
        Some(Conversion { counter, mode })
    }

    fn counter(&self, guest: &Reader<'_>) -> Option<Counter> {
        let chosen = match self.chosen {
            Some(at) => Some(guest.memory.address(at).ok()?),
            None => None,
        };
        let is_chosen = |function| chosen == Some(function);
        if let Some(kvm) = self.kvm.filter(|kvm| is_chosen(kvm.function)) {
            return kvm.read(guest);
        }
        let native = self.native?;
        (chosen.is_none() || is_chosen(native.function)).then_some(())?;
        native.read(guest)
    }

    /// Reads the variables of `sched_clock_local`.
    fn ticks(&self, guest: &Reader<'_>) -> Option<Mode> {
        let at = guest.variable(self.ticks.variable);
        let part = |offset| guest.u64(at.wrapping_add(offset));
        let time = part(self.ticks.time)?.wrapping_add(guest.u64(self.ticks_offset)?);
        let last = part(self.ticks.last)?;
        let most = |tick| later(last, time.wrapping_add(tick));
        let bounds = self.tick(guest).map(|tick| (later(time, last), most(tick)));
        Some(Mode::Ticks {
            time,
            raw: part(self.ticks.raw)?,
            bounds,
        })
    }

    /// Returns the nanoseconds of a tick, `TICK_NSEC`.
    fn tick(&self, guest: &Reader<'_>) -> Option<u64> {
        let jiffies = self.jiffies?;
        let multiplier = guest.memory.u32(jiffies.multiplier).ok()?;
        let tick = u64::from(multiplier.checked_shr(guest.memory.u32(jiffies.shift).ok()?)?);
        (1..=MAX_TICK).contains(&tick).then_some(tick)
    }
}

impl Native {
    fn read(&self, guest: &Reader<'_>) -> Option<Counter> {
        // Until the static key is on, `sched_clock` counts jiffies, which don't pass yet.
        guest.is_on(self.in_use)?.then_some(())?;
        let at = guest.variable(self.variable);
        let number = || guest.memory.u32(at.wrapping_add(self.number)).ok();
        for _ in 0..TRIES {
            let before = number()?;
            let skipped = if before & 1 == 0 { 0 } else { self.copy_size };
            let copy = at.wrapping_add(self.copies).wrapping_add(skipped);
            let part = |offset: u64| copy.wrapping_add(offset);
            let counter = Counter::Native {
                multiplier: guest.memory.u32(part(self.multiplier)).ok()?,
                shift: guest.memory.u32(part(self.shift)).ok()?,
                offset: guest.u64(part(self.offset))?,
            };
            if number()? == before {
                return Some(counter);
            }
        }
        None
    }
}

impl Kvm {
    /// Reads what the host writes, `struct pvclock_vcpu_time_info`: `Documentation/virt/kvm/x86/msr.rst`,
    /// `MSR_KVM_SYSTEM_TIME_NEW`. Where the host doesn't promise that this clock never goes backwards, the guest may
    /// also prevent that itself; this is left out.
    fn read(self, guest: &Reader<'_>) -> Option<Counter> {
        let at = GuestVirtAddr(guest.u64(guest.variable(self.variable))?);
        let start = guest.u64(self.start)?;
        let version = || guest.memory.u32(at).ok();
        for _ in 0..TRIES {
            let before = version()?;
            let part = |offset| at.wrapping_add(offset);
            let [shift] = guest.memory.array(part(28)).ok()?;
            let counter = Counter::Kvm {
                counter: guest.u64(part(8))?,
                time: guest.u64(part(16))?,
                multiplier: guest.memory.u32(part(24)).ok()?,
                shift: i8::from_le_bytes([shift]),
                start,
            };
            // The host makes the version odd before it writes, and even again afterwards.
            if before % 2 == 0 && version()? == before {
                return (before != 0).then_some(counter);
            }
        }
        None
    }
}

/// The variables of the kernel and of one CPU.
struct Reader<'a> {
    memory: KernelMemory<'a>,
    variables: GuestVirtAddr,
}

impl Reader<'_> {
    fn u64(&self, at: GuestVirtAddr) -> Option<u64> {
        self.memory.u64(at).ok()
    }

    fn variable(&self, displacement: i32) -> GuestVirtAddr {
        let at = self.variables.0.wrapping_add_signed(displacement.into());
        GuestVirtAddr(at)
    }

    /// Returns true if a static key is on: its count is more than 0, or -1 while the kernel patches its text
    /// (`kernel/jump_label.c`).
    fn is_on(&self, key: GuestVirtAddr) -> Option<bool> {
        Some(self.memory.u32(key).ok()? != 0)
    }
}
