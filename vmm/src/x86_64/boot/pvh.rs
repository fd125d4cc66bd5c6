//! What a boot loader passes to a kernel that is entered by PVH.
//!
//! The protocol: Xen `docs/misc/pvh.pandoc` and `public/arch-x86/hvm/start_info.h`. The kernel's ELF file has a note,
//! `XEN_ELFNOTE_PHYS32_ENTRY`, with the physical address of an entry for 32-bit protected mode without paging. EBX
//! points at a structure that leads to the command line, the memory map, the initramfs and the ACPI tables. Linux has
//! that entry with `CONFIG_PVH` (`arch/x86/platform/pvh`).

use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::boot_e820_entry;
use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use vm_memory::GuestAddress;

use super::error::LoadError;
use super::params::BootInfo;
use crate::ram::GuestRam;
use crate::x86_64::layout;

/// `XEN_HVM_START_MAGIC_VALUE`.
const MAGIC: u32 = 0x336e_c578;
/// The first version with a memory map.
const VERSION: u32 = 1;

/// Writes the structure, which EBX is to point at, to [`layout::START_INFO`], and what it leads to.
pub(super) fn write(ram: &GuestRam, info: &BootInfo<'_>) -> Result<(), LoadError> {
    let map: Vec<_> = super::params::e820(info.ram).iter().map(range).collect();
    let modules: Vec<_> = info
        .initramfs
        .iter()
        .map(|&(paddr, size)| hvm_modlist_entry {
            paddr,
            size,
            ..hvm_modlist_entry::default()
        })
        .collect();
    let start = hvm_start_info {
        magic: MAGIC,
        version: VERSION,
        cmdline_paddr: layout::CMDLINE,
        rsdp_paddr: info.acpi_root,
        nr_modules: modules.len() as u32,
        modlist_paddr: layout::START_MODULES,
        memmap_paddr: layout::START_MAP,
        memmap_entries: map.len() as u32,
        ..hvm_start_info::default()
    };
    let mut params = BootParams::new(&start, GuestAddress(layout::START_INFO));
    params.set_sections(&map, GuestAddress(layout::START_MAP));
    params.set_modules(&modules, GuestAddress(layout::START_MODULES));
    PvhBootConfigurator::write_bootparams(&params, ram.known()).map_err(|error| {
        LoadError::BadKernel {
            reason: error.to_string(),
        }
    })
}

/// The types of ranges are those of e820.
fn range(entry: &boot_e820_entry) -> hvm_memmap_table_entry {
    hvm_memmap_table_entry {
        addr: entry.addr,
        size: entry.size,
        type_: entry.r#type,
        ..hvm_memmap_table_entry::default()
    }
}
