//! Puts a kernel and all that it expects of a boot loader into guest memory.
//!
//! The protocol: Linux `Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol".

use std::io::Cursor;

use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, Segment};
use linux_loader::loader::{KernelLoader, bootparam::setup_header, bzimage::BzImage, elf::Elf};
use object::{
    LittleEndian,
    elf::{FileHeader64, PT_LOAD},
    read::elf::{FileHeader, ProgramHeader},
};
use thiserror::Error;
use vm_memory::{ByteValued, GuestAddress};

use super::{bzimage::KernelFile, firmware, gdt, page_tables, params, placement};
use crate::{
    ram::GuestRam,
    x86_64::{acpi, layout},
};

/// Where a bzImage's 64-bit entry point is, in bytes from its load address.
const ENTRY_64: u64 = 0x200;

/// How a kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMethod {
    /// The vmlinux inside is put where it is linked to run, and entered
    /// directly. Its addresses are known from the start; there is no KASLR.
    #[default]
    Elf,
    /// The bzImage is entered and unpacks itself, as on a real machine.
    BzImage,
}

/// A kernel in guest memory.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Guest physical address where the boot CPU begins.
    pub(crate) entry: u64,
    /// The kernel's segments, where they are linked to be. With
    /// [`BootMethod::BzImage`] the kernel has yet to unpack itself there.
    pub(crate) segments: Vec<Segment>,
}

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
        /// Its length in bytes, with the `nokaslr` that a bzImage is given.
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
            | Self::BadKernel { .. }
            | Self::KernelTooLow { .. }
            | Self::KernelOutOfReach { .. } => "kernel",
        }
    }
}

/// Loads `kernel`, its command line, its initramfs and the tables that describe
/// the machine, and makes page tables and segments to enter it with.
pub(crate) fn load(
    ram: &GuestRam,
    kernel: &KernelFile,
    method: BootMethod,
    initramfs: Option<&[u8]>,
    cmdline: &str,
    vcpus: u32,
) -> Result<Loaded, LoadError> {
    let write = |at: u64, bytes: &[u8]| ram.write(GuestPhysAddr(at), bytes);
    let image = match method {
        BootMethod::Elf => load_elf(ram, &kernel.elf)?,
        BootMethod::BzImage => load_bzimage(ram, kernel)?,
    };
    let cmdline = params::command_line(cmdline, method, &image.header)?;
    write(layout::CMDLINE, cmdline.as_bytes())?;
    write(layout::CMDLINE + cmdline.len() as u64, &[0])?;

    let initramfs = match initramfs {
        Some(bytes) if !bytes.is_empty() => {
            let len = bytes.len() as u64;
            let limit = image.initramfs_limit;
            let start = placement::place_initramfs(len, image.end, limit, ram.low_end())?;
            write(start, bytes)?;
            Some((start, len))
        }
        _ => None,
    };
    let facts = params::Facts {
        cmdline_len: cmdline.len(),
        initramfs,
        acpi_root: acpi::write_tables(ram, vcpus)?,
        ram: &ram.ranges(),
    };
    write(
        layout::ZERO_PAGE,
        params::zero_page(image.header, &facts).as_slice(),
    )?;
    write(layout::PAGE_TABLES, &page_tables::bytes())?;
    write(layout::GDT, &gdt::bytes())?;
    write(layout::RESET_VECTOR, &firmware::RESET_VECTOR_CODE)?;
    Ok(image.loaded)
}

/// A kernel in memory, and what the rest of the loading must know of it.
struct Image {
    loaded: Loaded,
    header: setup_header,
    /// End of the memory that the kernel uses before it knows of any other.
    end: u64,
    /// The initramfs must end here or below.
    initramfs_limit: u64,
}

fn load_elf(ram: &GuestRam, elf: &[u8]) -> Result<Image, LoadError> {
    let segments = segments(elf)?;
    let mut end = 0;
    for segment in &segments {
        let range = placement::check_kernel(segment.phys.0, segment.len, ram.low_end())?;
        end = range.end.max(end);
    }
    let start = Some(GuestAddress(layout::HIGH_RAM));
    let result = Elf::load(ram.known(), None, &mut Cursor::new(elf), start).map_err(|e| {
        LoadError::BadKernel {
            reason: e.to_string(),
        }
    })?;
    let entry = result.kernel_load.0;
    if !segments
        .iter()
        .any(|s| (s.phys.0..s.phys.0 + s.len).contains(&entry))
    {
        let reason = format!("its entry point {entry:#x} is in none of its segments");
        return Err(LoadError::BadKernel { reason });
    }
    Ok(Image {
        loaded: Loaded { entry, segments },
        header: params::plain_header(),
        end,
        initramfs_limit: layout::DEVICE_HOLE,
    })
}

fn segments(elf: &[u8]) -> Result<Vec<Segment>, LoadError> {
    let bad = |reason: String| LoadError::BadKernel { reason };
    let header = FileHeader64::<LittleEndian>::parse(elf).map_err(|e| bad(e.to_string()))?;
    let headers = header
        .program_headers(LittleEndian, elf)
        .map_err(|e| bad(e.to_string()))?;
    let mut segments = Vec::new();
    for header in headers.iter().filter(|h| h.p_type(LittleEndian) == PT_LOAD) {
        let segment = Segment {
            virt: GuestVirtAddr(header.p_vaddr(LittleEndian)),
            phys: GuestPhysAddr(header.p_paddr(LittleEndian)),
            len: header.p_memsz(LittleEndian),
        };
        // The loader copies by the length in the file; only the one in memory is checked.
        if header.p_filesz(LittleEndian) > segment.len {
            return Err(bad(format!(
                "its segment at {:#x} is longer in the file than in memory",
                segment.phys
            )));
        }
        if segment.len > 0 {
            segments.push(segment);
        }
    }
    Ok(segments)
}

fn load_bzimage(ram: &GuestRam, kernel: &KernelFile) -> Result<Image, LoadError> {
    let file = kernel.bzimage.as_deref().ok_or(LoadError::NotABzImage)?;
    let header = params::bzimage_header(file)?;
    // It may be loaded elsewhere if it is relocatable, but this is where it runs with
    // no need to move itself.
    let start = header.pref_address;
    let len = u64::from(header.init_size).max(file.len() as u64);
    let end = placement::check_kernel(start, len, ram.low_end())?.end;
    let high = Some(GuestAddress(layout::HIGH_RAM));
    let result = BzImage::load(
        ram.known(),
        Some(GuestAddress(start)),
        &mut Cursor::new(file),
        high,
    )
    .map_err(|e| LoadError::BadKernel {
        reason: e.to_string(),
    })?;
    let initramfs_limit = match header.initrd_addr_max {
        0 => layout::DEVICE_HOLE,
        last => u64::from(last) + 1,
    };
    Ok(Image {
        loaded: Loaded {
            entry: result.kernel_load.0 + ENTRY_64,
            segments: segments(&kernel.elf)?,
        },
        header,
        end,
        initramfs_limit,
    })
}

#[cfg(test)]
mod tests;
