//! What a boot loader passes to the kernel: the zero page and the command line.
//!
//! `Documentation/arch/x86/boot.rst` ("The Real-Mode Kernel Header", "64-bit
//! Boot Protocol") and `Documentation/arch/x86/zero-page.rst`.

use guest_state::PhysRange;
use linux_loader::loader::bootparam::{
    LOADED_HIGH, XLF_KERNEL_64, boot_e820_entry, boot_params, setup_header,
};
use vm_memory::ByteValued;

use super::error::LoadError;
use crate::x86_64::layout;

/// Offset of the setup header in a bzImage and in the zero page.
const HEADER_AT: usize = 0x1f1;
/// The byte that holds the length of the header from 0x202 on.
const HEADER_LEN_AT: usize = 0x201;
/// The first boot protocol with a 64-bit entry point.
const PROTOCOL_64_BIT: u16 = 0x020c;
/// The boot protocol that the monitor follows: it sets no newer field.
const PROTOCOL: u16 = 0x020f;
/// `type_of_loader` of a boot loader without a number of its own.
const UNKNOWN_LOADER: u8 = 0xff;
/// `boot_flag`.
const BOOT_FLAG: u16 = 0xaa55;
/// `header`: the characters `HdrS`.
const MAGIC: u32 = 0x5372_6448;
/// Alignment of a kernel that names none (the greatest `CONFIG_PHYSICAL_ALIGN`).
const ALIGNMENT: u32 = 16 << 20;

/// `E820_TYPE_RAM` and `E820_TYPE_RESERVED` of arch/x86/include/asm/e820/types.h.
const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;

/// The setup header of a bzImage.
///
/// # Errors
/// [`LoadError::No64BitEntry`].
pub(super) fn bzimage_header(file: &[u8]) -> Result<setup_header, LoadError> {
    // What follows the header is code, and fields of newer protocols must be 0.
    let len = file.get(HEADER_LEN_AT).copied().map_or(0, usize::from);
    let bytes = file
        .get(HEADER_AT..HEADER_LEN_AT + 1 + len)
        .ok_or(LoadError::No64BitEntry)?;
    let mut header = setup_header::default();
    for (to, from) in header.as_mut_slice().iter_mut().zip(bytes) {
        *to = *from;
    }
    if header.header != MAGIC
        || header.version < PROTOCOL_64_BIT
        || header.xloadflags & XLF_KERNEL_64 == 0
    {
        return Err(LoadError::No64BitEntry);
    }
    Ok(header)
}

/// The setup header for an ELF kernel, which has none.
pub(super) fn plain_header() -> setup_header {
    setup_header {
        boot_flag: BOOT_FLAG,
        header: MAGIC,
        version: PROTOCOL,
        kernel_alignment: ALIGNMENT,
        cmdline_size: layout::CMDLINE_MAX as u32 - 1,
        ..setup_header::default()
    }
}

/// What goes into the zero page beside the setup header.
pub(super) struct BootInfo<'a> {
    /// Length of the command line in bytes, without its NUL.
    pub(super) cmdline_len: usize,
    /// First byte and length of the initramfs.
    pub(super) initramfs: Option<(u64, u64)>,
    /// Address of the ACPI root pointer.
    pub(super) acpi_root: u64,
    /// Guest memory as (first, bytes).
    pub(super) ram: &'a [PhysRange],
}

/// Makes the zero page.
pub(super) fn zero_page(header: setup_header, info: &BootInfo<'_>) -> boot_params {
    let mut params = boot_params {
        hdr: header,
        ..boot_params::default()
    };
    params.hdr.type_of_loader = UNKNOWN_LOADER;
    params.hdr.loadflags |= LOADED_HIGH;
    params.hdr.cmd_line_ptr = layout::CMDLINE as u32;
    if params.hdr.cmdline_size == 0 {
        params.hdr.cmdline_size = info.cmdline_len as u32;
    }
    // Both ends are below 4 GiB: `load_address` sees to that.
    let (start, len) = info.initramfs.unwrap_or_default();
    params.hdr.ramdisk_image = start as u32;
    params.hdr.ramdisk_size = len as u32;
    params.acpi_rsdp_addr = info.acpi_root;
    let map = e820(info.ram);
    params.e820_entries = map.len() as u8;
    let mut table = params.e820_table;
    for (to, from) in table.iter_mut().zip(map) {
        *to = from;
    }
    params.e820_table = table;
    params
}

/// The memory map: all RAM is the kernel's but for the PC's hole below 1 MiB,
/// where the ACPI tables are.
pub(super) fn e820(ram: &[PhysRange]) -> Vec<boot_e820_entry> {
    let entry = |start: u64, end: u64, r#type: u32| boot_e820_entry {
        addr: start,
        size: end - start,
        r#type,
    };
    let mut map = vec![
        entry(0, layout::LOW_RAM_END, E820_RAM),
        entry(layout::LOW_RAM_END, layout::HIGH_RAM, E820_RESERVED),
    ];
    for range in ram {
        let (start, end) = (range.start.0.max(layout::HIGH_RAM), range.end().0);
        if start < end {
            map.push(entry(start, end, E820_RAM));
        }
    }
    map
}

/// Checks that the kernel takes a command line as it is, without its NUL.
///
/// # Errors
/// [`LoadError::CommandLineNul`], [`LoadError::CommandLineTooLong`].
pub(super) fn check_command_line(given: &str, header: &setup_header) -> Result<(), LoadError> {
    if let Some(at) = given.find('\0') {
        return Err(LoadError::CommandLineNul { at });
    }
    let max = match header.cmdline_size as usize {
        0 => layout::CMDLINE_MAX - 1,
        size => size.min(layout::CMDLINE_MAX - 1),
    };
    let len = given.len();
    if len > max {
        return Err(LoadError::CommandLineTooLong { len, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use guest_state::GuestPhysAddr;

    use super::*;

    #[test]
    fn a_command_line_that_the_kernel_would_cut_is_refused() {
        let check = |given: &str| check_command_line(given, &plain_header());
        let longest = "x".repeat(layout::CMDLINE_MAX - 1);
        assert!(check(&longest).is_ok());
        let error = check(&format!("{longest}x")).unwrap_err();
        assert!(
            matches!(
                error,
                LoadError::CommandLineTooLong {
                    len: 2048,
                    max: 2047
                }
            ),
            "{error}"
        );
        let error = check("a\0b").unwrap_err();
        assert!(matches!(error, LoadError::CommandLineNul { at: 1 }));
        let small = setup_header {
            cmdline_size: 3,
            ..plain_header()
        };
        assert!(check_command_line("abcd", &small).is_err());
    }

    #[test]
    fn the_memory_map_leaves_out_the_holes() {
        let ram = [(0, 3 << 30), (4 << 30, 2 << 30)].map(|(start, len)| PhysRange {
            start: GuestPhysAddr(start),
            len,
        });
        let map: Vec<_> = e820(&ram)
            .iter()
            .map(|e| (e.addr, e.size, e.r#type))
            .collect();
        assert_eq!(
            map,
            [
                (0, 0x9_fc00, E820_RAM),
                (0x9_fc00, 0x6_0400, E820_RESERVED),
                (0x10_0000, (3 << 30) - 0x10_0000, E820_RAM),
                (4 << 30, 2 << 30, E820_RAM),
            ]
        );
    }

    #[test]
    fn a_header_ends_where_it_says() {
        let mut file = vec![0xee; 0x400];
        file[HEADER_AT..0x26c].fill(0);
        file[0x201] = 0x66; // up to 0x268, before kernel_info_offset
        file[0x202..0x206].copy_from_slice(b"HdrS");
        file[0x206..0x208].copy_from_slice(&0x020d_u16.to_le_bytes());
        file[0x236] = 1;
        file[0x264..0x26c].fill(0xaa);
        let header = bzimage_header(&file).unwrap();
        let (handover, info) = (header.handover_offset, header.kernel_info_offset);
        assert_eq!((handover, info), (0xaaaa_aaaa, 0));
        file[0x236] = 0;
        assert!(matches!(
            bzimage_header(&file),
            Err(LoadError::No64BitEntry)
        ));
        assert!(matches!(
            bzimage_header(&file[..0x210]),
            Err(LoadError::No64BitEntry)
        ));
    }

    #[test]
    fn the_zero_page_tells_all() {
        let ram = [PhysRange {
            start: GuestPhysAddr(0),
            len: 64 << 20,
        }];
        let info = BootInfo {
            cmdline_len: 5,
            initramfs: Some((0x300_0000, 0x1234)),
            acpi_root: layout::ACPI,
            ram: &ram,
        };
        let page = zero_page(plain_header(), &info);
        let bytes = page.as_slice();
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(bytes.len(), 0x1000);
        assert_eq!(u32_at(0x070), layout::ACPI as u32);
        assert_eq!(bytes[0x1e8], 3);
        assert_eq!(bytes[0x1fe..0x200], [0x55, 0xaa]);
        assert_eq!(&bytes[0x202..0x206], b"HdrS");
        assert_eq!(bytes[0x210..0x212], [0xff, 1]);
        assert_eq!((u32_at(0x218), u32_at(0x21c)), (0x300_0000, 0x1234));
        assert_eq!(u32_at(0x228), layout::CMDLINE as u32);
    }
}
