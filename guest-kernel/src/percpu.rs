//! Where the kernel has the variables of which each CPU has its own copy.
//!
//! Sources: Linux `arch/x86/kernel/setup_percpu.c` (`__per_cpu_offset`, and that GS base is the same),
//! `include/asm-generic/vmlinux.lds.h` (`__per_cpu_start`, `__per_cpu_end`),
//! `arch/x86/include/asm/current.h` (`current_task`, and from 6.2 to 6.14 `pcpu_hot`),
//! `arch/x86/include/asm/preempt.h` (`__preempt_count`), `arch/x86/include/asm/irq_stack.h` (`hardirq_stack_ptr`).

#[cfg(test)]
mod tests;

use guest_state::{GuestMemory, GuestVirtAddr, MemoryError};
use thiserror::Error;

use crate::btf::Btf;
use crate::image_map::ImageMap;
use crate::symbols::{LookupError, Symbols};

/// The array with the start of each CPU's variables.
const OFFSETS: &str = "__per_cpu_offset";

/// Offsets of per-CPU variables and of members of a task, as far as symbols and types give them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Variables {
    /// What to add to GS base for the address of the CPU's current task (64 bits).
    pub current_task: Option<i32>,
    /// What to add to GS base for the CPU's number (32 bits).
    pub cpu_number: Option<i32>,
    /// Where a task has its number (32 bits).
    pub pid: Option<u32>,
    /// Where a task has its thread group's number (32 bits).
    pub tgid: Option<u32>,
    /// Where a task has its stack protector's secret (64 bits).
    pub stack_canary: Option<u32>,
    /// Where a task has its state (`__state`, `state` before 5.14), and its size in bytes.
    pub state: Option<(u32, u8)>,
    /// Where a task says whether it is on a CPU (32 bits).
    pub on_cpu: Option<u32>,
    /// Where a task has its name (16 bytes).
    pub comm: Option<u32>,
    /// What to add to GS base for the CPU's preemption count (32 bits).
    pub preempt_count: Option<i32>,
    /// What to add to GS base for where the CPU's stack for interrupts has its top word (64 bits). While that stack is
    /// in use, the word there is what RSP was before.
    pub interrupt_stack: Option<i32>,
    /// Where a task has the flags of its `thread_info` (64 bits).
    pub thread_flags: Option<u32>,
    /// Where a task counts how often it may not move to another CPU, and the size of that in bytes
    /// (`unsigned short`, `int` in the patches for real time).
    pub migration_disabled: Option<(u32, u8)>,
}

impl Variables {
    /// Finds the offsets of a kernel. Those that aren't found are `None`.
    pub fn find(symbols: &Symbols, btf: Option<&Btf>) -> Self {
        let member = |of: &str, name: &str, size: u64| {
            let member = btf?.member(of, name).ok()?;
            let whole = member.size == size && member.bits.is_none();
            member.offset.try_into().ok().filter(|_: &u32| whole)
        };
        // Its own name, and its name as a part of `pcpu_hot`.
        let one_of = |name: &str, in_hot: &str, size: u64| {
            let hot = || {
                let offset = member("pcpu_hot", in_hot, size)?;
                variable(symbols, "pcpu_hot", offset)
            };
            variable(symbols, name, 0).or_else(hot)
        };
        let sized = |names: &[(&str, u8)]| {
            names.iter().find_map(|(name, size)| {
                let offset = member("task_struct", name, (*size).into())?;
                Some((offset, *size))
            })
        };
        Self {
            current_task: one_of("current_task", "current_task", 8),
            cpu_number: one_of("cpu_number", "cpu_number", 4),
            pid: member("task_struct", "pid", 4),
            tgid: member("task_struct", "tgid", 4),
            stack_canary: member("task_struct", "stack_canary", 8),
            state: sized(&[("__state", 4), ("state", 8)]),
            on_cpu: member("task_struct", "on_cpu", 4),
            comm: member("task_struct", "comm", 16),
            preempt_count: one_of("__preempt_count", "preempt_count", 4),
            interrupt_stack: one_of("hardirq_stack_ptr", "hardirq_stack_ptr", 8),
            thread_flags: member("task_struct", "thread_info.flags", 8),
            migration_disabled: sized(&[("migration_disabled", 2), ("migration_disabled", 4)]),
        }
    }
}

/// Returns what has to be added to GS base to reach a part of a per-CPU variable.
///
/// A symbol is what an instruction has as its displacement, which the processor extends by its sign:
/// a small number in the kernels whose per-CPU area is linked at 0 (up to 6.14), a kernel address in others.
pub(crate) fn variable(symbols: &Symbols, name: &str, offset: u32) -> Option<i32> {
    let address = |name| Some(symbols.get(name)?.address.0);
    let area = address("__per_cpu_start")?..address("__per_cpu_end")?;
    let at = address(name)?.checked_add(offset.into())?;
    let displacement = i32::try_from(at.cast_signed()).ok()?;
    area.contains(&at).then_some(displacement)
}

/// Returns the GS base of each CPU that the kernel uses, by its number: reads `__per_cpu_offset`. CPUs that the kernel
/// will never use (`nr_cpus=`) are left out. The offsets are final once the kernel has started.
///
/// # Errors
/// See [`OffsetsError`].
pub fn offsets(
    memory: &dyn GuestMemory,
    image: &ImageMap,
    symbols: &Symbols,
    cpus: u32,
) -> Result<Vec<u64>, OffsetsError> {
    let address = symbols.find(OFFSETS)?.address;
    let mut bytes = vec![0; cpus as usize * 8];
    let (phys, _) = image
        .to_phys(address)
        .filter(|(_, left)| *left >= bytes.len() as u64)
        .ok_or(OffsetsError::NotLoaded { address })?;
    memory.read(phys, &mut bytes)?;
    let (words, _) = bytes.as_chunks();
    let mut offsets: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    // At first all CPUs use the one copy in the kernel's image; before 6.15 the offset of that copy is not 0.
    let is_unused = |offset: &u64| *offset == 0 || image.to_phys(GuestVirtAddr(*offset)).is_some();
    while offsets.last().is_some_and(is_unused) {
        offsets.pop();
    }
    match offsets
        .iter()
        .zip(0..)
        .find(|(offset, _)| is_unused(offset))
    {
        None => Ok(offsets),
        Some((_, 0)) => Err(OffsetsError::NotStarted),
        Some((offset, cpu)) => Err(OffsetsError::NotPlausible {
            cpu,
            offset: *offset,
        }),
    }
}

/// Why the addresses of the CPUs' variables can't be found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OffsetsError {
    /// A kernel for one CPU, or without the symbol.
    #[error("it can't be told where each CPU has its own variables")]
    NoSymbol(#[from] LookupError),
    /// It isn't in the image.
    #[error(
        "__per_cpu_offset ({address}) is not in the kernel image as loaded; check that the symbols belong \
         to this kernel"
    )]
    NotLoaded {
        /// Its address by symbol.
        address: GuestVirtAddr,
    },
    /// The kernel hasn't got that far.
    #[error("the kernel hasn't set up its CPUs' variables yet; wait until it has started")]
    NotStarted,
    /// Not a start of a CPU's variables.
    #[error(
        "__per_cpu_offset[{cpu}] is {offset:#x}, where no CPU can have its variables; check that the \
         symbols belong to this kernel"
    )]
    NotPlausible {
        /// Which CPU.
        cpu: u32,
        /// What is there.
        offset: u64,
    },
    /// Guest memory can't be accessed.
    #[error("cannot read the guest's __per_cpu_offset; check that the VM is still running")]
    Memory(#[from] MemoryError),
}
