//! Why a kernel can't be loaded.

use guest_state::MemoryError;
use thiserror::Error;

use crate::x86_64::layout;

/// Why a kernel can't be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The command line ends early.
    #[error("the kernel command line has a NUL at byte {at}, where it would end; take it out")]
    CommandLineNul {
        /// Where, in bytes.
        at: usize,
    },
    /// The kernel would cut the command line.
    #[error("the kernel command line has {len} bytes, this kernel takes {max}; shorten it")]
    CommandLineTooLong {
        /// Its length in bytes.
        len: usize,
        /// The most that the kernel takes.
        max: usize,
    },
    /// A boot by bzImage of a file that is none.
    #[error("the kernel file is no bzImage; boot it as ELF, or give the bzImage")]
    NotABzImage,
    /// A bzImage that can't be entered in 64-bit mode.
    #[error(
        "the bzImage has no 64-bit entry point (Linux has it since 3.8); boot it as ELF, or give \
         a newer kernel"
    )]
    No64BitEntry,
    /// A bzImage whose kernel can't be waited for.
    #[error(
        "the jump with which the bzImage enters the kernel that it has unpacked can't be found (Linux since 3.14 \
         has it where it is looked for), and probes are planted there; boot it as ELF (`--boot elf`)"
    )]
    NoLastJump,
    /// A boot by PVH of a kernel that can't.
    #[error(
        "the kernel has no entry for PVH (it was built without CONFIG_PVH); boot it as ELF (`--boot elf`)"
    )]
    NoPvhEntry,
    /// A kernel file that contradicts itself.
    #[error("the kernel can't be loaded: {reason}; give another build of it")]
    BadKernel {
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel wants memory that holds our boot structures.
    #[error(
        "the kernel is linked to load at {start:#x}; below {:#x} is no room for it. Build it with \
         its usual CONFIG_PHYSICAL_START of 0x1000000",
        layout::HIGH_RAM
    )]
    KernelTooLow {
        /// Its first guest physical address.
        start: u64,
    },
    /// The kernel reaches into the addresses of devices.
    #[error(
        "the kernel is linked to reach up to {end:#x}, past the last address of low memory \
         ({:#x}); no memory size mends that, build it with a lower CONFIG_PHYSICAL_START",
        layout::DEVICE_HOLE
    )]
    KernelOutOfReach {
        /// The guest physical address where it ends.
        end: u64,
    },
    /// The guest has too little memory for the kernel.
    #[error(
        "the kernel needs the guest memory from {start:#x} to {end:#x}, and the guest has only \
         {memory} MiB; give it {needed} MiB or more"
    )]
    KernelTooLarge {
        /// First guest physical address.
        start: u64,
        /// End of what it needs before it knows of other memory.
        end: u64,
        /// What the guest has, in MiB.
        memory: u64,
        /// What would do, in MiB.
        needed: u64,
    },
    /// The guest has too little memory for the initramfs.
    #[error(
        "the initramfs has {needed} bytes, and beside the kernel there is room for {room}; give \
         the guest {memory} MiB or more (and as much again to unpack it)"
    )]
    InitramfsTooLarge {
        /// Its length in bytes.
        needed: u64,
        /// The room for it in bytes.
        room: u64,
        /// The memory that would hold it, in MiB.
        memory: u64,
    },
    /// No memory size would make room for the initramfs.
    #[error(
        "the initramfs has {needed} bytes; this kernel takes {room} at most, however large its \
         memory; make it smaller"
    )]
    InitramfsOutOfReach {
        /// Its length in bytes.
        needed: u64,
        /// The most that could be placed, in bytes.
        room: u64,
    },
    /// The guest's memory doesn't even hold what is loaded beside the kernel.
    #[error("the guest's memory is too small to boot in ({0}); give it 64 MiB or more")]
    MemoryTooSmall(#[from] MemoryError),
}

impl LoadError {
    /// The field of the VM's configuration that is to blame.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            Self::CommandLineNul { .. } | Self::CommandLineTooLong { .. } => "cmdline",
            Self::InitramfsOutOfReach { .. } => "initramfs",
            Self::InitramfsTooLarge { .. }
            | Self::KernelTooLarge { .. }
            | Self::MemoryTooSmall(_) => "memory_mib",
            Self::NotABzImage
            | Self::No64BitEntry
            | Self::NoLastJump
            | Self::NoPvhEntry
            | Self::BadKernel { .. }
            | Self::KernelTooLow { .. }
            | Self::KernelOutOfReach { .. } => "kernel",
        }
    }
}
