//! What detours have to know of the variables that each CPU of the guest has its own copy of.
//!
//! Sources: Linux `arch/x86/kernel/setup_percpu.c` (`__per_cpu_offset`, and that GS base is the same),
//! `include/asm-generic/vmlinux.lds.h` (`__per_cpu_start`, `__per_cpu_end`), `mm/percpu.c` (a CPU's part
//! of a chunk is a number of pages), `arch/x86/include/asm/current.h` (`current_task`, and from 6.2 to
//! 6.14 `pcpu_hot`).

#[cfg(test)]
mod tests;

use guest_state::{GuestMemory, GuestVirtAddr, MemoryError};
use thiserror::Error;

use crate::arena::{BLOCKS, CALLS, RINGS, TRAMPOLINE};
use crate::btf::Btf;
use crate::detour::{Environment, Following};
use crate::image_map::ImageMap;
use crate::ring::layout;
use crate::symbols::{LookupError, Symbols};

const PAGE: u64 = 4096;
/// A block needs no more: so many counters that other memory is used up first.
const MAX_BLOCK: u64 = 2 << 20;
/// The array with the start of each CPU's variables.
const OFFSETS: &str = "__per_cpu_offset";

/// Where a kernel has what detours read, as far as its symbols and types tell.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Variables {
    /// See [`Environment::current_task`].
    pub current_task: Option<i32>,
    /// See [`Environment::cpu_number`].
    pub cpu_number: Option<i32>,
    /// See [`Environment::pid`].
    pub pid: Option<u32>,
    /// See [`Environment::tgid`].
    pub tgid: Option<u32>,
    /// See [`Environment::stack_canary`].
    pub stack_canary: Option<u32>,
    /// Where a task has its state (`__state`, `state` before 5.14), and its size in bytes.
    pub state: Option<(u32, u8)>,
    /// Where a task says whether it is on a CPU (32 bits).
    pub on_cpu: Option<u32>,
    /// Where a task has its name (16 bytes).
    pub comm: Option<u32>,
}

impl Variables {
    /// Those of a kernel; what isn't found stays `None`.
    pub fn find(symbols: &Symbols, btf: Option<&Btf>) -> Self {
        let member = |of: &str, name: &str, size: u64| {
            let member = btf?.member(of, name).ok()?;
            let whole = member.size == size && member.bits.is_none();
            member.offset.try_into().ok().filter(|_: &u32| whole)
        };
        let variable = |name: &str, size: u64| {
            let hot = || {
                let offset = member("pcpu_hot", name, size)?;
                variable(symbols, "pcpu_hot", offset)
            };
            variable(symbols, name, 0).or_else(hot)
        };
        Self {
            current_task: variable("current_task", 8),
            cpu_number: variable("cpu_number", 4),
            pid: member("task_struct", "pid", 4),
            tgid: member("task_struct", "tgid", 4),
            stack_canary: member("task_struct", "stack_canary", 8),
            state: [("__state", 4), ("state", 8)]
                .into_iter()
                .find_map(|(name, size)| {
                    let offset = member("task_struct", name, size.into())?;
                    Some((offset, size))
                }),
            on_cpu: member("task_struct", "on_cpu", 4),
            comm: member("task_struct", "comm", 16),
        }
    }
}

/// What has to be added to GS base to reach a part of a per-CPU variable.
///
/// A symbol is what an instruction has as its displacement, which the processor extends by its sign:
/// a small number in the kernels whose per-CPU area is linked at 0 (up to 6.14), a kernel address in others.
fn variable(symbols: &Symbols, name: &str, offset: u32) -> Option<i32> {
    let address = |name| Some(symbols.find(name).ok()?.address.0);
    let area = address("__per_cpu_start")?..address("__per_cpu_end")?;
    let at = address(name)?.checked_add(offset.into())?;
    let displacement = i32::try_from(at.cast_signed()).ok()?;
    area.contains(&at).then_some(displacement)
}

/// The vCPUs' blocks, and all else that a detour has to know of this guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerCpu {
    environment: Environment,
    blocks: Vec<GuestVirtAddr>,
    cells: u32,
}

impl PerCpu {
    /// Reads where the kernel has put its CPUs' variables, and lays out the blocks accordingly. Only a
    /// kernel that has started has decided that, for good.
    ///
    /// CPUs that the kernel will never use (`nr_cpus=`) have no block.
    ///
    /// # Errors
    /// See [`PerCpuError`].
    pub fn find(
        memory: &dyn GuestMemory,
        image: &ImageMap,
        symbols: &Symbols,
        variables: &Variables,
        vcpus: u32,
    ) -> Result<Self, PerCpuError> {
        let offsets = offsets(memory, image, symbols, vcpus)?;
        let first = *offsets.first().ok_or(PerCpuError::NotStarted)?;
        // How far each CPU's variables are above the first CPU's.
        let above = |offset: &u64| offset.wrapping_sub(first).cast_signed();
        let lowest = offsets.iter().map(above).min().unwrap_or_default();
        let from_lowest = |offset: &u64| above(offset).wrapping_sub(lowest).cast_unsigned();
        let mut sorted: Vec<_> = offsets.iter().map(from_lowest).zip(0..).collect();
        sorted.sort_unstable();
        let window = BLOCKS.end.0 - BLOCKS.start.0;
        let span = sorted.last().map_or(0, |(distance, _)| *distance);
        if span > window - PAGE {
            return Err(PerCpuError::TooFar { span, window });
        }
        let mut room = MAX_BLOCK.min(window - span);
        for pair in sorted.windows(2) {
            let [(lower, _), (upper, cpu)] = *pair else {
                continue;
            };
            let gap = upper - lower;
            if gap == 0 || !gap.is_multiple_of(PAGE) {
                return Err(PerCpuError::NotPlausible {
                    cpu,
                    offset: offsets[cpu as usize],
                });
            }
            room = room.min(gap);
        }
        let block = |offset| BLOCKS.start.wrapping_add(from_lowest(offset));
        Ok(Self {
            environment: Environment {
                block: block(&first).0.wrapping_sub(first),
                rings: RINGS,
                current_task: variables.current_task,
                cpu_number: variables.cpu_number,
                pid: variables.pid,
                tgid: variables.tgid,
                stack_canary: variables.stack_canary,
                following: Some(Following {
                    table: CALLS.start,
                    trampoline: TRAMPOLINE,
                }),
            },
            blocks: offsets.iter().map(block).collect(),
            cells: ((room - layout::CELLS) / layout::CELL) as u32,
        })
    }

    /// What all detours have in common.
    pub fn environment(&self) -> Environment {
        self.environment
    }

    /// The block of each CPU, by its number.
    pub fn blocks(&self) -> &[GuestVirtAddr] {
        &self.blocks
    }

    /// How many counters a block has room for, at least 1,008.
    pub fn cells(&self) -> u32 {
        self.cells
    }
}

/// Reads `__per_cpu_offset` for as many CPUs as the kernel uses.
fn offsets(
    memory: &dyn GuestMemory,
    image: &ImageMap,
    symbols: &Symbols,
    vcpus: u32,
) -> Result<Vec<u64>, PerCpuError> {
    if u64::from(vcpus) > layout::RINGS {
        return Err(PerCpuError::TooMany {
            vcpus,
            limit: layout::RINGS,
        });
    }
    let address = symbols.find(OFFSETS)?.address;
    let mut bytes = vec![0; vcpus as usize * 8];
    let (phys, _) = image
        .to_phys(address)
        .filter(|(_, left)| *left >= bytes.len() as u64)
        .ok_or(PerCpuError::NotLoaded { address })?;
    memory.read(phys, &mut bytes)?;
    let (words, _) = bytes.as_chunks();
    let mut offsets: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    // The kernel begins with the one copy in its image for all CPUs; before 6.15 that is not at 0.
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
        Some((_, 0)) => Err(PerCpuError::NotStarted),
        Some((offset, cpu)) => Err(PerCpuError::NotPlausible {
            cpu,
            offset: *offset,
        }),
    }
}

/// Why there can be no blocks, so that probes stay breakpoints.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PerCpuError {
    /// A kernel for one CPU, or without the symbol.
    #[error("it can't be told where each CPU has its own variables; probes stay breakpoints")]
    NoSymbol(#[from] LookupError),
    /// It isn't in the image.
    #[error(
        "__per_cpu_offset ({address}) is not in the kernel image as loaded; probes stay breakpoints. \
         Check that the symbols belong to this kernel"
    )]
    NotLoaded {
        /// Its address by symbol.
        address: GuestVirtAddr,
    },
    /// More vCPUs than rings.
    #[error(
        "there are rings for {limit} vCPUs, and this VM has {vcpus}; probes stay breakpoints. Give \
         the VM fewer vCPUs"
    )]
    TooMany {
        /// How many vCPUs.
        vcpus: u32,
        /// How many there can be.
        limit: u64,
    },
    /// The kernel hasn't got that far.
    #[error(
        "the kernel hasn't set up its CPUs' variables yet; probes stay breakpoints until it has started"
    )]
    NotStarted,
    /// Not a start of a CPU's variables.
    #[error(
        "__per_cpu_offset[{cpu}] is {offset:#x}, where no CPU can have its variables; probes stay \
         breakpoints. Check that the symbols belong to this kernel"
    )]
    NotPlausible {
        /// Which CPU.
        cpu: u32,
        /// What is there.
        offset: u64,
    },
    /// They don't fit into the window.
    #[error(
        "the CPUs' variables lie {span} bytes apart, more than the arena's window of {window} bytes; \
         probes stay breakpoints. Give the VM fewer vCPUs, or one NUMA node"
    )]
    TooFar {
        /// From the first to the last, in bytes.
        span: u64,
        /// The window's length in bytes.
        window: u64,
    },
    /// Guest memory can't be accessed.
    #[error("cannot read the guest's __per_cpu_offset; check that the VM is still running")]
    Memory(#[from] MemoryError),
}
