//! Kernel, initramfs, command line and tables into guest memory.

use std::io::Cursor;

use linux_loader::{
    configurator::{BootConfigurator, BootParams, linux::LinuxBootConfigurator},
    loader::{Elf, KernelLoader, bzimage::BzImage},
};
use object::{
    LittleEndian,
    elf::{FileHeader64, PT_LOAD},
    read::elf::{FileHeader, ProgramHeader},
};
use thiserror::Error;
use vm_memory::GuestAddress;

use super::{
    bzimage::KernelFile,
    gdt, page_tables,
    params::{self, Facts},
    placement::{check_kernel, place_initramfs},
};
use crate::{
    acpi, layout,
    ram::{GuestRam, OutsideRam},
};

/// From the start of a bzImage's protected-mode code to its 64-bit entry point
/// (boot.rst, "64-bit Boot Protocol").
const ENTRY_64: u64 = 0x200;

/// How a kernel is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootMethod {
    /// The ELF inside, whatever the file's format: no decompressor runs in the
    /// guest and nothing is randomized.
    #[default]
    Elf,
    /// A bzImage as it is: its own decompressor runs in the guest.
    BzImage,
}

/// A piece of the kernel in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where the kernel runs it.
    pub virt: u64,
    /// Where it is in guest memory.
    pub phys: u64,
    /// Its length in bytes, zeroed memory at its end included.
    pub len: u64,
}

/// A kernel in place.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// Guest physical address of its first instruction.
    pub(crate) entry: u64,
    /// Its pieces; none for a bzImage booted as it is, which unpacks itself.
    pub(crate) segments: Vec<Segment>,
}

/// Why a kernel can't be put into guest memory.
#[derive(Debug, Error)]
pub enum LoadError {
    /// Part of the kernel would lie where the monitor's own tables are.
    #[error("a part of the kernel wants to be at {start:#x}, below 1 MiB, which isn't free")]
    KernelTooLow {
        /// First guest physical address of the part.
        start: u64,
    },
    /// Part of the kernel would lie above what a kernel can be loaded to.
    #[error("a part of the kernel would end at {end:#x}, beyond the first 3 GiB of memory")]
    KernelOutOfReach {
        /// End of the part.
        end: u64,
    },
    /// Not enough memory for the kernel.
    #[error(
        "the kernel takes guest memory from {start:#x} to {end:#x}, of which {memory} MiB are \
         too little: give the VM at least {needed} MiB"
    )]
    KernelTooLarge {
        /// First guest physical address of the kernel.
        start: u64,
        /// Its end.
        end: u64,
        /// Memory below 3 GiB, in MiB.
        memory: u64,
        /// MiB that would do for the kernel alone.
        needed: u64,
    },
    /// Not enough memory for the initramfs.
    #[error(
        "the initramfs has {needed} bytes, but beside the kernel there is room for {room}: give \
         the VM at least {memory} MiB"
    )]
    InitramfsTooLarge {
        /// Its size in bytes.
        needed: u64,
        /// Room in bytes.
        room: u64,
        /// MiB of memory that would do.
        memory: u64,
    },
    /// No memory size would do for the initramfs.
    #[error(
        "the initramfs has {needed} bytes, but this kernel can take {room} at the most, however \
         much memory there is: make it smaller"
    )]
    InitramfsOutOfReach {
        /// Its size in bytes.
        needed: u64,
        /// The most in bytes.
        room: u64,
    },
    /// A file that can't be booted by the bzImage's own decompressor.
    #[error(
        "the kernel is no bzImage with a 64-bit entry point (Linux 3.8 and newer have one): \
         boot the ELF inside instead"
    )]
    No64BitEntry,
    /// A NUL in the command line.
    #[error("the command line has a NUL character at byte {at}")]
    CommandLineNul {
        /// Where.
        at: usize,
    },
    /// A command line that the kernel would cut.
    #[error("the command line has {len} bytes, the kernel takes {max}")]
    CommandLineTooLong {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// Segments that can't be loaded.
    #[error("the kernel's segments can't be loaded: {0}")]
    Segments(String),
    /// Guest memory ends below what every boot needs.
    #[error("the tables for the boot don't fit into guest memory: {0}")]
    Tables(#[from] OutsideRam),
}

impl LoadError {
    /// The field of the VM's configuration that is to blame.
    pub fn field(&self) -> &'static str {
        match self {
            Self::CommandLineNul { .. } | Self::CommandLineTooLong { .. } => "cmdline",
            Self::InitramfsOutOfReach { .. } => "initramfs",
            Self::InitramfsTooLarge { .. } | Self::KernelTooLarge { .. } | Self::Tables(_) => {
                "memory_mib"
            }
            Self::No64BitEntry
            | Self::KernelTooLow { .. }
            | Self::KernelOutOfReach { .. }
            | Self::Segments(_) => "kernel",
        }
    }
}

/// Puts a kernel and all that it needs at its entry into `ram`.
///
/// # Errors
/// See [`LoadError`].
pub(crate) fn load(
    ram: &GuestRam,
    kernel: &KernelFile,
    method: BootMethod,
    initramfs: Option<&[u8]>,
    cmdline: &str,
    vcpus: u32,
) -> Result<Loaded, LoadError> {
    let header = match &kernel.bzimage {
        Some(file) => params::bzimage_header(file),
        None => Err(LoadError::No64BitEntry),
    };
    let (header, loaded, kernel_end) = match method {
        BootMethod::BzImage => {
            let header = header?;
            let (loaded, end) = load_bzimage(ram, kernel, header.pref_address, header.init_size)?;
            (header, loaded, end)
        }
        BootMethod::Elf => {
            let (loaded, end) = load_elf(ram, &kernel.elf)?;
            (header.unwrap_or_else(|_| params::plain_header()), loaded, end)
        }
    };
    let cmdline = params::command_line(cmdline, method, &header)?;
    let initramfs = initramfs
        .map(|bytes| {
            let limit = match header.initrd_addr_max {
                0 => layout::DEVICE_HOLE,
                max => u64::from(max) + 1,
            };
            let len = bytes.len() as u64;
            let at = place_initramfs(len, kernel_end, limit, ram.low_end())?;
            ram.write(at, bytes)?;
            Ok::<_, LoadError>((at, len))
        })
        .transpose()?;

    ram.write(layout::GDT, &gdt::bytes())?;
    ram.write(layout::PAGE_TABLES, &page_tables::bytes())?;
    ram.write(layout::CMDLINE, &[cmdline.as_bytes(), b"\0"].concat())?;
    let facts = Facts {
        cmdline_len: cmdline.len(),
        initramfs,
        acpi_root: acpi::write_tables(ram, vcpus)?,
        ram: &ram.ranges(),
    };
    let zero_page = params::zero_page(header, &facts);
    let params = BootParams::new(&zero_page, GuestAddress(layout::ZERO_PAGE));
    LinuxBootConfigurator::write_bootparams(&params, ram.map())
        .map_err(|error| LoadError::Segments(error.to_string()))?;
    Ok(loaded)
}

/// Loads the ELF's segments; returns also where the last one ends.
fn load_elf(ram: &GuestRam, elf: &[u8]) -> Result<(Loaded, u64), LoadError> {
    let segments = segments(elf)?;
    let mut kernel_end = 0;
    for segment in &segments {
        let range = check_kernel(segment.phys, segment.len, ram.low_end())?;
        kernel_end = kernel_end.max(range.end);
    }
    let start = Some(GuestAddress(layout::HIGH_RAM));
    let loaded = Elf::load(ram.map(), None, &mut Cursor::new(elf), start)
        .map_err(|error| LoadError::Segments(error.to_string()))?;
    Ok((Loaded { entry: loaded.kernel_load.0, segments }, kernel_end))
}

/// Loads the compressed kernel with its decompressor where the unpacked kernel
/// will be; returns also the end of the memory that unpacking takes.
fn load_bzimage(
    ram: &GuestRam,
    kernel: &KernelFile,
    start: u64,
    init_size: u32,
) -> Result<(Loaded, u64), LoadError> {
    let file = kernel.bzimage.as_deref().ok_or(LoadError::No64BitEntry)?;
    let len = u64::from(init_size).max(file.len() as u64);
    let range = check_kernel(start, len, ram.low_end())?;
    BzImage::load(ram.map(), Some(GuestAddress(start)), &mut Cursor::new(file), None)
        .map_err(|error| LoadError::Segments(error.to_string()))?;
    Ok((Loaded { entry: start + ENTRY_64, segments: Vec::new() }, range.end))
}

/// The loadable segments by the ELF's program headers.
fn segments(elf: &[u8]) -> Result<Vec<Segment>, LoadError> {
    let broken = |error: object::read::Error| LoadError::Segments(error.to_string());
    let header = FileHeader64::<LittleEndian>::parse(elf).map_err(broken)?;
    let headers = header.program_headers(LittleEndian, elf).map_err(broken)?;
    let loadable = headers.iter().filter(|h| {
        h.p_type(LittleEndian) == PT_LOAD && h.p_memsz(LittleEndian) != 0
    });
    let segment = |h: &object::elf::ProgramHeader64<LittleEndian>| Segment {
        virt: h.p_vaddr(LittleEndian),
        phys: h.p_paddr(LittleEndian),
        len: h.p_memsz(LittleEndian),
    };
    Ok(loadable.map(segment).collect())
}
