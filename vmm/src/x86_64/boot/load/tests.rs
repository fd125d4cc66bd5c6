use super::*;
use crate::x86_64::boot::bzimage::{Compression, KernelFormat};

const MIB: u64 = 1 << 20;
/// Offset of the decompressor's last jump in what is loaded of the bzImage.
const LAST_JUMP: usize = 0x900;
const ONE_CPU: acpi::Hardware = acpi::Hardware {
    vcpus: 1,
    nodes: 1,
    has_pci: false,
};

/// A vmlinux of segments (virtual, physical, bytes in memory), each with 16
/// bytes in the file that hold its number, entered at its first.
fn vmlinux(segments: &[(u64, u64, u64)]) -> Vec<u8> {
    let mut file = vec![0; 64 + 56 * segments.len()];
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2_u16.to_le_bytes()); // e_type: ET_EXEC
    put(18, &62_u16.to_le_bytes()); // e_machine: EM_X86_64
    put(20, &1_u32.to_le_bytes()); // e_version
    put(24, &segments[0].1.to_le_bytes()); // e_entry
    put(32, &64_u64.to_le_bytes()); // e_phoff
    put(52, &64_u16.to_le_bytes()); // e_ehsize
    put(54, &56_u16.to_le_bytes()); // e_phentsize
    put(56, &(segments.len() as u16).to_le_bytes()); // e_phnum
    for (i, (virt, phys, len)) in segments.iter().enumerate() {
        let at = 64 + 56 * i;
        put(at, &1_u32.to_le_bytes()); // PT_LOAD
        put(
            at + 8,
            &((64 + 56 * segments.len() + 16 * i) as u64).to_le_bytes(),
        );
        put(at + 16, &virt.to_le_bytes());
        put(at + 24, &phys.to_le_bytes());
        put(at + 32, &16_u64.to_le_bytes());
        put(at + 40, &len.to_le_bytes());
    }
    for i in 0..segments.len() {
        file.extend([i as u8 + 1; 16]);
    }
    file
}

/// A bzImage that prefers 16 MiB and asks for 8 MiB there.
fn bzimage() -> Vec<u8> {
    let mut file = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]); // setup_sects
    put(0x201, &[0x6a]);
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes());
    put(0x211, &[1]); // loadflags: LOADED_HIGH
    put(0x214, &0x10_0000_u32.to_le_bytes()); // code32_start
    put(0x22c, &0x7fff_ffff_u32.to_le_bytes()); // initrd_addr_max
    put(0x236, &1_u16.to_le_bytes()); // xloadflags
    put(0x238, &2047_u32.to_le_bytes()); // cmdline_size
    put(0x258, &0x100_0000_u64.to_le_bytes()); // pref_address
    put(0x260, &0x80_0000_u32.to_le_bytes()); // init_size
    put(0x248, &0x100_u32.to_le_bytes()); // payload_offset
    put(0x24c, &0x700_u32.to_le_bytes()); // payload_length
    file.extend([0x90; 0x1000]);
    let last_jump = [0xe8, 0, 0, 0, 0, 0x5e, 0xff, 0xe0];
    file[0x400 + LAST_JUMP - 6..][..8].copy_from_slice(&last_jump);
    file
}

fn kernel(elf: Vec<u8>) -> KernelFile {
    KernelFile {
        format: KernelFormat::Elf,
        elf,
        bzimage: None,
    }
}

fn two_segments() -> KernelFile {
    kernel(vmlinux(&[
        (0xffff_ffff_8100_0000, 0x100_0000, 0x20_0000),
        (0xffff_ffff_8200_0000, 0x200_0000, 0x80_0000),
    ]))
}

fn packed() -> KernelFile {
    KernelFile {
        format: KernelFormat::BzImage {
            compression: Compression::Gzip,
            version: String::new(),
        },
        bzimage: Some(bzimage()),
        ..two_segments()
    }
}

fn read<const N: usize>(ram: &GuestRam, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    ram.read(GuestPhysAddr(at), &mut bytes).unwrap();
    bytes
}

#[test]
fn an_elf_is_loaded_where_its_segments_say() {
    let ram = GuestRam::new(64).unwrap();
    let initramfs = [0x55; 5000];
    let loaded = load(
        &ram,
        &two_segments(),
        BootMethod::Elf,
        Some(&initramfs),
        "quiet",
        acpi::Hardware {
            vcpus: 2,
            ..ONE_CPU
        },
    )
    .unwrap();
    assert_eq!(loaded.entry, Entry::Bits64(0x100_0000));
    assert_eq!(
        loaded.segments,
        [
            Segment {
                virt: GuestVirtAddr(0xffff_ffff_8100_0000),
                phys: GuestPhysAddr(0x100_0000),
                len: 0x20_0000
            },
            Segment {
                virt: GuestVirtAddr(0xffff_ffff_8200_0000),
                phys: GuestPhysAddr(0x200_0000),
                len: 0x80_0000
            },
        ]
    );
    assert_eq!(read(&ram, 0x100_0000), [1_u8; 16]);
    assert_eq!(read(&ram, 0x200_0000), [2_u8; 16]);
    assert_eq!(&read(&ram, layout::CMDLINE), b"quiet\0");
    let start = u32::from_le_bytes(read(&ram, layout::ZERO_PAGE + 0x218));
    assert_eq!(u64::from(start), 64 * MIB - 0x2000);
    assert_eq!(read(&ram, u64::from(start)), initramfs);
    assert_eq!(&read(&ram, layout::ACPI), b"RSD PTR ");
    assert_eq!(
        read(&ram, layout::GDT + 16),
        [0xff, 0xff, 0, 0, 0, 0x9b, 0xaf, 0]
    );
}

/// The same with a note of an entry for PVH (elf(5): two lengths, the type `XEN_ELFNOTE_PHYS32_ENTRY`, name, content).
fn with_pvh_entry(kernel: KernelFile, entry: u32) -> KernelFile {
    let mut elf = kernel.elf;
    let note = elf.len() as u64;
    for word in [4_u32, 4, 18] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(b"Xen\0");
    elf.extend(entry.to_le_bytes());
    // The headers go behind all else, with one more.
    let headers = elf.len() as u64;
    elf.extend_from_within(64..64 + 2 * 56);
    let mut header = [0; 56];
    header[..4].copy_from_slice(&4_u32.to_le_bytes()); // PT_NOTE
    header[8..16].copy_from_slice(&note.to_le_bytes());
    header[32..40].copy_from_slice(&20_u64.to_le_bytes());
    header[48..56].copy_from_slice(&4_u64.to_le_bytes());
    elf.extend(header);
    elf[32..40].copy_from_slice(&headers.to_le_bytes());
    elf[56..58].copy_from_slice(&3_u16.to_le_bytes());
    KernelFile { elf, ..kernel }
}

#[test]
fn a_kernel_with_an_entry_for_pvh_finds_all_from_the_start_info() {
    let ram = GuestRam::new(64).unwrap();
    let kernel = with_pvh_entry(two_segments(), 0x100_0040);
    let initramfs = [0x55; 5000];
    let loaded = load(
        &ram,
        &kernel,
        BootMethod::Pvh,
        Some(&initramfs),
        "quiet",
        ONE_CPU,
    )
    .unwrap();
    assert_eq!(loaded.entry, Entry::Pvh(0x100_0040));
    assert_eq!(read(&ram, 0x100_0000), [1_u8; 16]);
    let word = |at: u64| u64::from_le_bytes(read(&ram, at));
    let half = |at: u64| u32::from_le_bytes(read(&ram, at));
    let start = layout::START_INFO;
    assert_eq!((half(start), half(start + 4)), (0x336e_c578, 1));
    assert_eq!(&read(&ram, word(start + 24)), b"quiet\0");
    assert_eq!(&read(&ram, word(start + 32)), b"RSD PTR ");
    assert_eq!(half(start + 12), 1);
    let module = word(start + 16);
    assert_eq!(word(module + 8), 5000);
    assert_eq!(read(&ram, word(module)), initramfs);
    let (map, count) = (word(start + 40), half(start + 48));
    let ranges: Vec<_> = (0..u64::from(count))
        .map(|index| map + index * 24)
        .map(|at| (word(at), word(at + 8), half(at + 16)))
        .collect();
    assert_eq!(
        ranges,
        [
            (0, 0x9_fc00, 1),
            (0x9_fc00, 0x6_0400, 2),
            (0x10_0000, 63 * MIB, 1),
        ]
    );
}

#[test]
fn a_kernel_without_an_entry_for_pvh_is_refused() {
    let ram = GuestRam::new(64).unwrap();
    let refused =
        |kernel: &KernelFile| load(&ram, kernel, BootMethod::Pvh, None, "", ONE_CPU).unwrap_err();
    let error = refused(&two_segments());
    assert!(matches!(error, LoadError::NoPvhEntry), "{error}");
    let error = refused(&with_pvh_entry(two_segments(), 0x40_0000));
    assert!(
        error.to_string().contains("in none of its segments"),
        "{error}"
    );
}

#[test]
fn a_bzimage_is_loaded_where_it_prefers_to_be_and_entered_in_64_bit_mode() {
    let ram = GuestRam::new(64).unwrap();
    let loaded = load(&ram, &packed(), BootMethod::BzImage, None, "quiet", ONE_CPU).unwrap();
    assert_eq!(loaded.entry, Entry::Bits64(0x100_0200));
    // As linked: that is where it unpacks itself to.
    assert_eq!(loaded.segments.len(), 2);
    assert_eq!(read(&ram, 0x100_0000), [0x90; 0x800]);
    let jump = 0x100_0000 + LAST_JUMP as u64;
    assert_eq!(loaded.last_jump, Some(GuestPhysAddr(jump)));
    assert_eq!(read(&ram, jump), last_jump::JUMP);
    assert_eq!(&read(&ram, layout::CMDLINE), b"quiet\0");
    assert_eq!(&read(&ram, layout::ZERO_PAGE + 0x202), b"HdrS");
    assert_eq!(
        read(&ram, layout::ZERO_PAGE + 0x260),
        0x80_0000_u32.to_le_bytes()
    );
    // Nothing of the file but its header is in the zero page.
    assert_eq!(read(&ram, layout::ZERO_PAGE + 0x1e8), [3]);
}

#[test]
fn a_bzimage_whose_kernel_can_t_be_waited_for_is_refused() {
    let ram = GuestRam::new(64).unwrap();
    let mut kernel = packed();
    for byte in kernel.bzimage.iter_mut().flatten().filter(|b| **b == 0xe0) {
        *byte = 0xe1;
    }
    let error = load(&ram, &kernel, BootMethod::BzImage, None, "", ONE_CPU).unwrap_err();
    assert!(matches!(error, LoadError::NoLastJump), "{error}");
}

#[test]
fn a_vmlinux_has_no_bzimage_to_boot() {
    let ram = GuestRam::new(64).unwrap();
    let error = load(
        &ram,
        &two_segments(),
        BootMethod::BzImage,
        None,
        "",
        ONE_CPU,
    )
    .unwrap_err();
    assert!(matches!(error, LoadError::NotABzImage));
}

#[test]
fn the_initramfs_never_overlaps_what_the_kernel_clears_or_unpacks_into() {
    let cases = [
        (two_segments(), BootMethod::Elf, 40),
        (packed(), BootMethod::BzImage, 24),
    ];
    for (kernel, method, end) in cases {
        let ram = GuestRam::new(64).unwrap();
        let fits = vec![0x77; ((64 - end) * MIB) as usize];
        load(&ram, &kernel, method, Some(&fits), "", ONE_CPU).unwrap();
        let start = u32::from_le_bytes(read(&ram, layout::ZERO_PAGE + 0x218));
        assert_eq!(u64::from(start), end * MIB);
        let larger = vec![0x77; fits.len() + 1];
        let error = load(&ram, &kernel, method, Some(&larger), "", ONE_CPU).unwrap_err();
        assert!(
            matches!(error, LoadError::InitramfsTooLarge { memory: 65, .. }),
            "{method:?}: {error}"
        );
    }
}

#[test]
fn a_kernel_that_memory_does_not_hold_is_refused() {
    for (kernel, method, needed) in [
        (two_segments(), BootMethod::Elf, 40),
        (packed(), BootMethod::BzImage, 24),
    ] {
        let ram = GuestRam::new(16).unwrap();
        let error = load(&ram, &kernel, method, None, "", ONE_CPU).unwrap_err();
        assert!(error.to_string().contains("only 16 MiB"), "{error}");
        assert!(
            load(
                &GuestRam::new(needed - 1).unwrap(),
                &kernel,
                method,
                None,
                "",
                ONE_CPU,
            )
            .is_err()
        );
        load(
            &GuestRam::new(needed).unwrap(),
            &kernel,
            method,
            None,
            "",
            ONE_CPU,
        )
        .unwrap();
    }
}

#[test]
fn damaged_segments_are_refused() {
    let ram = GuestRam::new(64).unwrap();
    let error =
        |file: Vec<u8>| load(&ram, &kernel(file), BootMethod::Elf, None, "", ONE_CPU).unwrap_err();
    let low = error(vmlinux(&[(0, 0x100_0000, 0x1000), (0, 0x7000, 0x1000)]));
    assert!(
        matches!(low, LoadError::KernelTooLow { start: 0x7000 }),
        "{low}"
    );
    let far = error(vmlinux(&[(0, 0x100_0000, u64::MAX)]));
    assert!(matches!(far, LoadError::KernelOutOfReach { .. }), "{far}");
    let long = error(vmlinux(&[(0, 0x100_0000, 15)]));
    assert!(long.to_string().contains("longer in the file"), "{long}");
    let mut astray = vmlinux(&[(0, 0x100_0000, 0x1000)]);
    astray[24..32].copy_from_slice(&0x100_1000_u64.to_le_bytes());
    let astray = error(astray);
    assert!(
        astray.to_string().contains("entry point 0x1001000"),
        "{astray}"
    );
}
