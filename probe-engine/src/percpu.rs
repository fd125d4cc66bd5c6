//! The memory of ours that each CPU of the guest has for itself: its block, reached by GS.
//!
//! Sources: Linux `arch/x86/kernel/setup_percpu.c` (GS base is where a CPU's variables are), `mm/percpu.c`
//! (a CPU's part of a chunk is a number of pages).

#[cfg(test)]
mod tests;

use guest_kernel::ImageMap;
use guest_kernel::percpu::{OffsetsError, Variables, offsets};
use guest_kernel::symbols::Symbols;
use guest_state::x86_64::PAGE_SIZE;
use guest_state::{GuestMemory, GuestVirtAddr};
use thiserror::Error;

use crate::arena::{BLOCKS, CALLS, RINGS, TRAMPOLINE, blocks_len};
use crate::detour::{Environment, Following, Pointers};
use crate::ring::layout;

/// The most bytes of a block: it has so many counters then that other memory is used up first.
const MAX_BLOCK: u64 = 2 << 20;

/// The vCPUs' blocks, and all else that a detour has to know of this guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerCpu {
    environment: Environment,
    blocks: Vec<GuestVirtAddr>,
    cells: u32,
    first_cpu: GuestVirtAddr,
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
        if u64::from(vcpus) > layout::RINGS {
            return Err(PerCpuError::TooMany {
                vcpus,
                limit: layout::RINGS,
            });
        }
        let offsets = offsets(memory, image, symbols, vcpus)?;
        let first = *offsets.first().ok_or(OffsetsError::NotStarted)?;
        // How far each CPU's variables are above the first CPU's.
        let above = |offset: &u64| offset.wrapping_sub(first).cast_signed();
        let lowest = offsets.iter().map(above).min().unwrap_or_default();
        let from_lowest = |offset: &u64| above(offset).wrapping_sub(lowest).cast_unsigned();
        let mut sorted: Vec<_> = offsets.iter().map(from_lowest).zip(0..).collect();
        sorted.sort_unstable();
        let window = blocks_len(vcpus);
        let span = sorted.last().map_or(0, |(distance, _)| *distance);
        if span > window - PAGE_SIZE {
            return Err(PerCpuError::TooFar { span, window });
        }
        let mut room = MAX_BLOCK.min(window - span);
        for pair in sorted.windows(2) {
            let [(lower, _), (upper, cpu)] = *pair else {
                continue;
            };
            let gap = upper - lower;
            if gap == 0 || !gap.is_multiple_of(PAGE_SIZE) {
                let offset = offsets[cpu as usize];
                return Err(OffsetsError::NotPlausible { cpu, offset }.into());
            }
            room = room.min(gap);
        }
        let block = |offset| BLOCKS.start.wrapping_add(from_lowest(offset));
        Ok(Self {
            environment: Environment {
                block: block(&first).0.wrapping_sub(first),
                rings: RINGS,
                variables: *variables,
                following: Some(Following {
                    table: CALLS.start,
                    trampoline: TRAMPOLINE,
                }),
                pointers: None,
            },
            blocks: offsets.iter().map(block).collect(),
            first_cpu: GuestVirtAddr(first),
            cells: ((room - layout::CELLS) / layout::CELL) as u32,
        })
    }

    /// Lets detours follow pointers into RAM that the arena maps.
    pub fn with_pointers(mut self, pointers: Option<Pointers>) -> Self {
        self.environment.pointers = pointers;
        self
    }

    /// What all detours have in common.
    pub fn environment(&self) -> Environment {
        self.environment
    }

    /// Where the variables of the first CPU are.
    pub fn first_cpu(&self) -> GuestVirtAddr {
        self.first_cpu
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

/// Why there can be no blocks, so that probes stay breakpoints.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PerCpuError {
    /// It can't be told where each CPU has its variables.
    #[error("probes stay breakpoints: {0}")]
    Offsets(#[from] OffsetsError),
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
}
