//! Puts a kernel and all that it expects of a boot loader into guest memory.
//!
//! The protocol: Linux `Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol".

use std::io::Cursor;

use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, Segment};
use linux_loader::loader::{
    KernelLoader,
    bootparam::setup_header,
    bzimage::BzImage,
    elf::{Elf, PvhBootCapability},
};
use object::{
    LittleEndian,
    elf::{FileHeader64, PT_LOAD},
    read::elf::{FileHeader, ProgramHeader},
};
use vm_memory::{ByteValued, GuestAddress};

use super::{
    bzimage::{self, KernelFile},
    error::LoadError,
    firmware, gdt, last_jump, load_address,
    method::BootMethod,
    page_tables, params, pvh,
};
use crate::{
    ram::GuestRam,
    x86_64::{acpi, layout},
};

/// Where a bzImage's 64-bit entry point is, in bytes from its load address.
const ENTRY_64: u64 = 0x200;

/// Where the boot CPU begins, by its guest physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// In 64-bit mode (Linux `Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol").
    Bits64(u64),
    /// In 32-bit mode without paging, as PVH wants it.
    Pvh(u64),
}

impl Entry {
    /// The address.
    pub(crate) fn address(self) -> GuestPhysAddr {
        match self {
            Self::Bits64(at) | Self::Pvh(at) => GuestPhysAddr(at),
        }
    }
}

/// A kernel in guest memory.
#[derive(Debug)]
pub(crate) struct LoadedKernel {
    /// Where the boot CPU begins, and how.
    pub(crate) entry: Entry,
    /// The kernel's segments, where they are linked to be.
    pub(crate) segments: Vec<Segment>,
    /// With [`BootMethod::BzImage`], the last jump of the decompressor, which has yet to unpack the kernel.
    pub(crate) last_jump: Option<GuestPhysAddr>,
}

/// Loads `kernel`, its command line, its initramfs and the tables that describe
/// the machine, and makes page tables and segments to enter it with.
pub(crate) fn load(
    ram: &GuestRam,
    kernel: &KernelFile,
    method: BootMethod,
    initramfs: Option<&[u8]>,
    cmdline: &str,
    hardware: acpi::Hardware,
) -> Result<LoadedKernel, LoadError> {
    let write = |at: u64, bytes: &[u8]| ram.write(GuestPhysAddr(at), bytes);
    let image = match method {
        BootMethod::Elf | BootMethod::Pvh => load_elf(ram, &kernel.elf, method)?,
        BootMethod::BzImage => load_bzimage(ram, kernel)?,
    };
    params::check_command_line(cmdline, &image.header)?;
    write(layout::CMDLINE, cmdline.as_bytes())?;
    write(layout::CMDLINE + cmdline.len() as u64, &[0])?;

    let initramfs = match initramfs {
        Some(bytes) if !bytes.is_empty() => {
            let len = bytes.len() as u64;
            let limit = image.initramfs_limit;
            let start = load_address::place_initramfs(len, image.end, limit, ram.low_end())?;
            write(start, bytes)?;
            Some((start, len))
        }
        _ => None,
    };
    let info = params::BootInfo {
        cmdline_len: cmdline.len(),
        initramfs,
        acpi_root: acpi::write_tables(ram, hardware)?,
        ram: &ram.ranges(),
    };
    match method {
        BootMethod::Pvh => pvh::write(ram, &info)?,
        BootMethod::Elf | BootMethod::BzImage => {
            let zero_page = params::zero_page(image.header, &info);
            write(layout::ZERO_PAGE, zero_page.as_slice())?;
        }
    }
    write(layout::PAGE_TABLES, &page_tables::bytes())?;
    write(layout::GDT, &gdt::bytes())?;
    write(layout::RESET_VECTOR, &firmware::RESET_VECTOR_CODE)?;
    Ok(image.loaded)
}

/// A kernel in memory, and what the rest of the loading must know of it.
struct LoadedImage {
    loaded: LoadedKernel,
    header: setup_header,
    /// End of the memory that the kernel uses before it knows of any other.
    end: u64,
    /// The initramfs must end here or below.
    initramfs_limit: u64,
}

fn load_elf(ram: &GuestRam, elf: &[u8], method: BootMethod) -> Result<LoadedImage, LoadError> {
    let segments = segments(elf)?;
    let mut end = 0;
    for segment in &segments {
        let range = load_address::check_kernel(segment.phys.0, segment.len, ram.low_end())?;
        end = range.end.max(end);
    }
    let start = Some(GuestAddress(layout::HIGH_RAM));
    let result = Elf::load(ram.known(), None, &mut Cursor::new(elf), start).map_err(|e| {
        LoadError::BadKernel {
            reason: e.to_string(),
        }
    })?;
    let entry = match (method, result.pvh_boot_cap) {
        (BootMethod::Pvh, PvhBootCapability::PvhEntryPresent(at)) => Entry::Pvh(at.0),
        (BootMethod::Pvh, _) => return Err(LoadError::NoPvhEntry),
        _ => Entry::Bits64(result.kernel_load.0),
    };
    let at = entry.address();
    if !segments
        .iter()
        .any(|s| (s.phys.0..s.phys.0 + s.len).contains(&at.0))
    {
        let reason = format!("its entry point {at} is in none of its segments");
        return Err(LoadError::BadKernel { reason });
    }
    Ok(LoadedImage {
        loaded: LoadedKernel {
            entry,
            segments,
            last_jump: None,
        },
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

fn load_bzimage(ram: &GuestRam, kernel: &KernelFile) -> Result<LoadedImage, LoadError> {
    let file = kernel.bzimage.as_deref().ok_or(LoadError::NotABzImage)?;
    let header = params::bzimage_header(file)?;
    let last_jump = find_last_jump(file, &header).ok_or(LoadError::NoLastJump)?;
    // It may be loaded elsewhere if it is relocatable, but this is where it runs with
    // no need to move itself.
    let start = header.pref_address;
    let len = u64::from(header.init_size).max(file.len() as u64);
    let end = load_address::check_kernel(start, len, ram.low_end())?.end;
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
    Ok(LoadedImage {
        loaded: LoadedKernel {
            entry: Entry::Bits64(result.kernel_load.0 + ENTRY_64),
            segments: segments(&kernel.elf)?,
            last_jump: Some(GuestPhysAddr(result.kernel_load.0 + last_jump)),
        },
        header,
        end,
        initramfs_limit,
    })
}

/// The decompressor's last jump, in bytes from where the bzImage is loaded.
fn find_last_jump(file: &[u8], header: &setup_header) -> Option<u64> {
    let code = file.get(bzimage::setup_len(header.setup_sects)..)?;
    let payload = header.payload_offset as usize;
    let payload = payload..payload.checked_add(header.payload_length as usize)?;
    last_jump::find(code, payload).map(|at| at as u64)
}

#[cfg(test)]
mod tests;
