use proptest::prelude::*;

use super::payload::testing::{ALL, pack};
use super::*;

const VERSION: &str = "6.1.0-test (someone@somewhere) #1 SMP";

/// The smallest vmlinux: a header, one segment, and some relocations behind.
fn vmlinux() -> Vec<u8> {
    let mut file = vec![0; 0x200];
    file[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2_u16.to_le_bytes()); // e_type: ET_EXEC
    put(18, &62_u16.to_le_bytes()); // e_machine: EM_X86_64
    put(20, &1_u32.to_le_bytes()); // e_version
    put(24, &0x0100_0000_u64.to_le_bytes()); // e_entry
    put(32, &64_u64.to_le_bytes()); // e_phoff
    put(52, &64_u16.to_le_bytes()); // e_ehsize
    put(54, &56_u16.to_le_bytes()); // e_phentsize
    put(56, &1_u16.to_le_bytes()); // e_phnum
    put(64, &1_u32.to_le_bytes()); // p_type: PT_LOAD
    put(68, &5_u32.to_le_bytes()); // p_flags: R, X
    put(72, &0x100_u64.to_le_bytes()); // p_offset
    put(96, &0x80_u64.to_le_bytes()); // p_filesz
    put(104, &0x80_u64.to_le_bytes()); // p_memsz
    put(0x100, &[0x90; 0x80]);
    put(0x180, &[0xa5; 0x80]);
    file
}

fn bzimage(payload: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 2 * SECTOR + 64];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]);
    put(0x1fe, &[0x55, 0xaa]);
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes());
    put(0x20e, &0x100_u16.to_le_bytes());
    put(0x236, &1_u16.to_le_bytes());
    put(0x248, &64_u32.to_le_bytes());
    put(0x24c, &(payload.len() as u32).to_le_bytes());
    put(0x300, VERSION.as_bytes());
    file.extend_from_slice(payload);
    file.extend_from_slice(b"a signature");
    file
}

fn error(file: Vec<u8>) -> KernelFileError {
    read_kernel(file).unwrap_err()
}

#[test]
fn a_vmlinux_is_taken_as_it_is() {
    let kernel = read_kernel(vmlinux()).unwrap();
    assert_eq!(kernel.format, KernelFormat::Elf);
    assert_eq!(kernel.elf, vmlinux());
    assert!(kernel.bzimage.is_none());
}

#[test]
fn a_bzimage_of_every_compression_gives_its_elf_and_its_version() {
    for compression in ALL {
        let file = bzimage(&pack(compression, &vmlinux()));
        let kernel = read_kernel(file.clone()).unwrap();
        let version = VERSION.to_owned();
        assert_eq!(
            kernel.format,
            KernelFormat::BzImage {
                compression,
                version
            }
        );
        assert_eq!(kernel.elf, vmlinux(), "{compression}");
        assert_eq!(kernel.bzimage, Some(file));
    }
}

#[test]
fn setup_sects_of_zero_means_four() {
    let mut file = bzimage(b"");
    file[0x1f1] = 0;
    file.resize(5 * SECTOR + 64, 0);
    file.extend(vmlinux());
    file[0x24c..0x250].copy_from_slice(&(vmlinux().len() as u32).to_le_bytes());
    assert_eq!(read_kernel(file).unwrap().elf, vmlinux());
}

#[test]
fn a_file_that_is_no_kernel_is_refused_without_a_word_of_its_content() {
    for (file, expected) in [
        (b"".to_vec(), "length 0 bytes"),
        (b"root:secret\n".to_vec(), "length 12 bytes"),
        (vec![0; 100_000], "neither a bzImage nor a vmlinux ELF"),
        (b"\x7fELF".to_vec(), "truncated: its ELF header"),
        (
            bzimage(b"")[..0x20a].to_vec(),
            "truncated: its setup header",
        ),
    ] {
        let message = error(file).to_string();
        assert!(message.contains(expected), "{message}");
        for told in ["root", "secret", "72 6f", "726f"] {
            assert!(!message.contains(told), "{message}");
        }
    }
}

#[test]
fn a_truncated_file_says_how_long_it_should_be() {
    let whole = bzimage(&pack(Compression::Gzip, &vmlinux()));
    let end = whole.len() - b"a signature".len();
    match error(whole[..end - 1].to_vec()) {
        KernelFileError::Truncated {
            part: "payload",
            needed,
            len,
        } => {
            assert_eq!((needed, len), (end as u64, end as u64 - 1));
        }
        other => panic!("{other}"),
    }
    match error(vmlinux()[..0x17f].to_vec()) {
        KernelFileError::Truncated {
            part: "ELF segment",
            needed: 0x180,
            len: 0x17f,
        } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn kernels_for_other_machines_are_named() {
    let elf_for = |class: u8, data: u8, machine: u16| {
        let mut file = vmlinux();
        (file[4], file[5]) = (class, data);
        let machine = if data == 1 {
            machine.to_le_bytes()
        } else {
            machine.to_be_bytes()
        };
        file[18..20].copy_from_slice(&machine);
        file
    };
    let mut arm64_image = vec![0; 64];
    arm64_image[56..60].copy_from_slice(b"ARM\x64");
    let mut bzimage_32 = bzimage(&vmlinux());
    bzimage_32[0x236] = 0;
    for (file, expected) in [
        (elf_for(1, 1, 3), "32-bit x86"),
        (elf_for(2, 1, 183), "64-bit ARM"),
        (elf_for(2, 2, 22), "s390"),
        (elf_for(2, 1, 9999), "another machine"),
        (elf_for(1, 1, 62), "odd ELF class"),
        (arm64_image, "64-bit ARM"),
        (
            bzimage(&pack(Compression::Xz, &elf_for(1, 1, 3))),
            "32-bit x86",
        ),
        (bzimage_32, "32-bit x86"),
    ] {
        let message = error(file).to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn an_old_protocol_is_named() {
    let mut file = bzimage(&vmlinux());
    file[0x206] = 7;
    assert!(error(file).to_string().contains("boot protocol 2.07"));
}

#[test]
fn a_payload_that_holds_no_elf_is_reported() {
    let file = bzimage(&pack(Compression::Lz4, b"just some text"));
    assert!(matches!(error(file), KernelFileError::PayloadNotElf));
}

#[test]
fn an_object_file_is_refused() {
    let mut file = vmlinux();
    file[16] = 1;
    assert!(error(file).to_string().contains("no executable"));
}

proptest! {
    #[test]
    fn a_damaged_bzimage_never_panics(
        which in 0..ALL.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8), 1..6),
        keep in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut file = bzimage(&pack(ALL[which], &vmlinux()));
        for (at, bit) in flips {
            let at = at.index(file.len());
            file[at] ^= 1_u8 << bit;
        }
        if cut {
            file.truncate(keep.index(file.len()));
        }
        if let Err(error) = read_kernel(file) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn a_damaged_vmlinux_never_panics(at in 0..0x100_usize, byte in any::<u8>()) {
        let mut file = vmlinux();
        file[at] = byte;
        drop(read_kernel(file));
    }

    #[test]
    fn every_prefix_is_an_error(which in 0..ALL.len(), keep in any::<prop::sample::Index>()) {
        let whole = bzimage(&pack(ALL[which], &vmlinux()));
        let end = whole.len() - b"a signature".len();
        prop_assert!(read_kernel(whole[..keep.index(end)].to_vec()).is_err());
    }
}
