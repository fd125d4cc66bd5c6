//! What an event tells of the task and of the CPU: which task it was, and what could have interrupted it.
//!
//! Sources: Linux `kernel/trace/trace.c`, `tracing_gen_ctx_irq_test` (what ftrace shows of it);
//! `include/linux/preempt.h` and `arch/x86/include/asm/preempt.h` (the preemption count);
//! `arch/x86/include/asm/thread_info.h` and `include/asm-generic/thread_info_tif.h` (flags of a task).

#[cfg(test)]
mod tests;

use std::cell::Cell;

use guest_state::x86_64::paging::{PageTables, read_virt, walk};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use crate::percpu::Variables;

/// `PREEMPT_MASK`, `SOFTIRQ_MASK`, `HARDIRQ_MASK` and `NMI_MASK`.
const PREEMPT: u32 = 0xff;
const SOFT: u32 = 0xff << 8;
const HARD: u32 = 0xf << 16;
const NMI: u32 = 0xf << 20;
/// `SOFTIRQ_OFFSET`: a soft interrupt is handled. Those are disabled in steps of twice that.
const SERVING_SOFT: u32 = 1 << 8;
/// `PREEMPT_NEED_RESCHED`, which x86 keeps inverted.
const NO_RESCHED: u32 = 1 << 31;

/// What the kernel's variables said of a CPU and of its task. The default is no task, which everything can interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskContext {
    /// The task's number.
    pub pid: u32,
    /// Its thread group's number, which is the number of its process.
    pub tgid: u32,
    /// Its name, which ends with its first NUL or with the array.
    pub comm: [u8; 16],
    /// The CPU's preemption count as it is in memory.
    pub preempt_count: u32,
    /// The flags of the task's `thread_info`.
    pub thread_flags: u64,
    /// How often the task was told to stay on its CPU.
    pub migration_disabled: u32,
}

impl Default for TaskContext {
    fn default() -> Self {
        Self {
            pid: 0,
            tgid: 0,
            comm: [0; 16],
            preempt_count: NO_RESCHED,
            thread_flags: 0,
            migration_disabled: 0,
        }
    }
}

impl TaskContext {
    /// Reads the context of a CPU whose variables start at `variables`, GS base of a vCPU in the kernel, and the
    /// address of its current task. `None` if the current task isn't known. Other values that aren't known are those of
    /// the default.
    pub fn read(
        memory: &dyn GuestMemory,
        tables: PageTables,
        variables: GuestVirtAddr,
        known: &Variables,
    ) -> Option<(GuestVirtAddr, Self)> {
        let guest = Nearby::new(memory, tables);
        let of_cpu = |offset: i32| GuestVirtAddr(variables.0.wrapping_add_signed(offset.into()));
        let task = GuestVirtAddr(guest.u64(of_cpu(known.current_task?))?);
        let of_task = |offset: u32| task.wrapping_add(offset.into());
        let word = |at: Option<GuestVirtAddr>| guest.u32(at?);
        let number = |offset: Option<u32>| word(offset.map(of_task));
        let comm = |offset| guest.array(of_task(offset));
        let flags = |offset| guest.u64(of_task(offset));
        let migration = |(offset, size)| match size {
            2 => Some(u16::from_le_bytes(guest.array(of_task(offset))?).into()),
            _ => guest.u32(of_task(offset)),
        };
        let nobody = Self::default();
        let context = Self {
            pid: number(known.pid).unwrap_or(nobody.pid),
            tgid: number(known.tgid).unwrap_or(nobody.tgid),
            comm: known.comm.and_then(comm).unwrap_or(nobody.comm),
            preempt_count: word(known.preempt_count.map(of_cpu)).unwrap_or(nobody.preempt_count),
            thread_flags: known.thread_flags.and_then(flags).unwrap_or(0),
            migration_disabled: known.migration_disabled.and_then(migration).unwrap_or(0),
        };
        Some((task, context))
    }

    /// Returns the task's name without its NUL.
    pub fn name(&self) -> &[u8] {
        let end = self.comm.iter().position(|byte| *byte == 0);
        self.comm
            .get(..end.unwrap_or(self.comm.len()))
            .unwrap_or(&[])
    }
}

/// Guest memory by virtual addresses that are near each other: a page is looked up once. The kernel maps its
/// tasks and its CPUs' variables by pages of 2 MiB and more.
struct Nearby<'a> {
    memory: &'a dyn GuestMemory,
    tables: PageTables,
    /// The page that was looked up last: where it is mapped, its length, and its physical address.
    last: Cell<Option<(u64, u64, u64)>>,
}

impl<'a> Nearby<'a> {
    fn new(memory: &'a dyn GuestMemory, tables: PageTables) -> Self {
        Self {
            memory,
            tables,
            last: Cell::new(None),
        }
    }

    fn array<const N: usize>(&self, at: GuestVirtAddr) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let end = at.0.checked_add(N as u64)?;
        let is_in =
            |(start, len, _): &(u64, u64, u64)| at.0 >= *start && end <= start.wrapping_add(*len);
        let (start, _, phys) = match self.last.get().filter(is_in) {
            Some(page) => page,
            None => {
                let found = walk(self.memory, self.tables, at).ok()?;
                let len = found.page_size.bytes();
                let start = at.0 & !(len - 1);
                let page = (start, len, found.phys.0 & !(len - 1));
                if !is_in(&page) {
                    // The value goes on in the next page, which may be anywhere.
                    read_virt(self.memory, self.tables, at, &mut bytes).ok()?;
                    return Some(bytes);
                }
                self.last.set(Some(page));
                page
            }
        };
        let at = GuestPhysAddr(phys + (at.0 - start));
        self.memory.read(at, &mut bytes).ok()?;
        Some(bytes)
    }

    fn u32(&self, at: GuestVirtAddr) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: GuestVirtAddr) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
}

/// What ftrace shows of a context, except for interrupts that are off: those are in RFLAGS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// The CPU handled a non-maskable interrupt, or an exception that the kernel counts as one, such as an int3.
    pub in_nmi: bool,
    /// The CPU handled an interrupt.
    pub in_interrupt: bool,
    /// The CPU handled a soft interrupt.
    pub in_soft_interrupt: bool,
    /// Soft interrupts were disabled.
    pub soft_interrupts_off: bool,
    /// The task was asked to give the CPU up: by its own flag.
    pub need_resched: bool,
    /// The same by the CPU's preemption count. One may be set before the other.
    pub preempt_need_resched: bool,
    /// The task was asked to give the CPU up when it suits it.
    pub need_resched_lazy: bool,
    /// How often preemption was disabled. ftrace shows no more than 15.
    pub preempt_disabled: u32,
    /// How often migration was disabled. ftrace shows no more than 15.
    pub migrate_disabled: u32,
}

/// Decodes what the kernel's variables said. In a kernel for real time (`CONFIG_PREEMPT_RT`) soft interrupts
/// that are disabled aren't in the count.
pub fn decode(context: &TaskContext, bits: ReschedBits) -> Flags {
    let count = context.preempt_count;
    let flag = |bit: u8| context.thread_flags >> bit & 1 != 0;
    Flags {
        in_nmi: count & NMI != 0,
        in_interrupt: count & HARD != 0,
        in_soft_interrupt: count & SERVING_SOFT != 0,
        soft_interrupts_off: count & SOFT & !SERVING_SOFT != 0,
        need_resched: flag(bits.now),
        preempt_need_resched: count & NO_RESCHED == 0,
        need_resched_lazy: bits.lazy.is_some_and(flag),
        preempt_disabled: count & PREEMPT,
        migrate_disabled: context.migration_disabled,
    }
}

/// Which flags of a task ask it to give the CPU up. They are numbers in the kernel's source, and no image has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReschedBits {
    /// `TIF_NEED_RESCHED`
    pub now: u8,
    /// `TIF_NEED_RESCHED_LAZY`
    pub lazy: Option<u8>,
}

impl Default for ReschedBits {
    /// The flags up to Linux 6.12.
    fn default() -> Self {
        Self { now: 3, lazy: None }
    }
}

impl ReschedBits {
    /// Returns the flags of a kernel with this release, such as `6.12.118+deb13-cloud-amd64`; the default if the text
    /// is no release.
    pub fn of(release: &str) -> Self {
        let mut numbers = release
            .split(|letter: char| !letter.is_ascii_digit())
            .map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            return Self::default();
        };
        match (major, minor) {
            // The flags have the same numbers on all architectures (`thread_info_tif.h`).
            (6, 18..) | (7.., _) => Self {
                now: 4,
                lazy: Some(5),
            },
            (6, 13..) => Self {
                now: 3,
                lazy: Some(4),
            },
            _ => Self::default(),
        }
    }
}
