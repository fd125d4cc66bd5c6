//! The ELF core file of a guest: its memory, its vCPUs, and its kernel's note `VMCOREINFO`.
//!
//! It has the form that `kexec` makes of a crashed kernel (`Documentation/admin-guide/kdump/kdump.rst`) and that QEMU's
//! `dump-guest-memory` writes: a note for each vCPU, the kernel's own note `VMCOREINFO`, and a segment for each range of
//! physical memory. Layout: the ELF-64 object file format 1.5, and `struct elf_prstatus` (`include/linux/elfcore.h`,
//! `arch/x86/include/asm/elf.h`).

use guest_state::{ControlRegisters, PhysRange, Registers};
use vmm::SegmentRegisters;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Segments begin at a page of the file, so that a hole in the guest's memory can be a hole in the file.
const PAGE: u64 = 4096;
/// `ET_CORE`, `EM_X86_64`, `PT_LOAD`, `PT_NOTE`.
const CORE: u16 = 4;
const X86_64: u16 = 62;
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// `PF_R | PF_W | PF_X`.
const ALL: u32 = 7;
/// `NT_PRSTATUS`, under the name `CORE`.
const PRSTATUS: u32 = 1;
/// The length of `struct elf_prstatus`, and the offsets of the process and the registers in it.
const STATUS_LEN: usize = 336;
const STATUS_PID: usize = 32;
const STATUS_REGISTERS: usize = 112;

/// A vCPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct CoreVcpu {
    /// RIP is where the vCPU stands in the guest's own code.
    pub registers: Registers,
    pub control: ControlRegisters,
    pub segments: SegmentRegisters,
}

/// The part of a core file before the memory.
#[derive(Debug)]
pub struct CoreFile {
    /// The first bytes of the file.
    pub head: Vec<u8>,
    /// Ranges of guest memory, each with its offset in the file.
    pub memory: Vec<(PhysRange, u64)>,
    /// Bytes of the whole file.
    pub size: u64,
}

impl CoreFile {
    /// Lays a core file out. `direct_map` is where the kernel has all physical memory in its virtual address space, and
    /// `vmcoreinfo` is the text of its note of this name, if it has one.
    pub fn new(
        ranges: &[PhysRange],
        vcpus: &[CoreVcpu],
        vmcoreinfo: Option<&[u8]>,
        direct_map: u64,
    ) -> Self {
        let mut notes = Vec::new();
        for (vcpu, process) in vcpus.iter().zip(1..) {
            note(&mut notes, b"CORE\0", PRSTATUS, &status(vcpu, process));
        }
        if let Some(text) = vmcoreinfo {
            note(&mut notes, b"VMCOREINFO\0", 0, text);
        }
        let headers = HEADER + PROGRAM_HEADER * (1 + ranges.len());
        let mut end = (headers + notes.len()) as u64;
        let mut memory = Vec::new();
        for range in ranges {
            let at = end.next_multiple_of(PAGE);
            memory.push((*range, at));
            end = at + range.len;
        }
        let mut head = header(1 + ranges.len());
        let at = headers as u64;
        segment(&mut head, NOTE, 0, (at, 0, 0), notes.len() as u64);
        for (range, at) in &memory {
            let virt = direct_map.wrapping_add(range.start.0);
            segment(&mut head, LOAD, ALL, (*at, virt, range.start.0), range.len);
        }
        head.extend(notes);
        Self {
            head,
            memory,
            size: end,
        }
    }
}

fn header(segments: usize) -> Vec<u8> {
    // 64 bits, little-endian, version 1.
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend(CORE.to_le_bytes());
    bytes.extend(X86_64.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    // No entry point; the program headers follow; no sections.
    for word in [0, HEADER as u64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0_u32.to_le_bytes());
    let segments = u16::try_from(segments).unwrap_or(u16::MAX);
    for half in [HEADER as u16, PROGRAM_HEADER as u16, segments, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes
}

/// Adds a program header. `at` has the offset in the file, the virtual and the physical address.
fn segment(to: &mut Vec<u8>, kind: u32, flags: u32, at: (u64, u64, u64), len: u64) {
    to.extend(kind.to_le_bytes());
    to.extend(flags.to_le_bytes());
    for word in [at.0, at.1, at.2, len, len, 0] {
        to.extend(word.to_le_bytes());
    }
}

/// Adds a note. `name` ends with a zero.
fn note(to: &mut Vec<u8>, name: &[u8], kind: u32, text: &[u8]) {
    for word in [name.len() as u32, text.len() as u32, kind] {
        to.extend(word.to_le_bytes());
    }
    for part in [name, text] {
        to.extend(part);
        to.resize(to.len().next_multiple_of(4), 0);
    }
}

/// Returns the `struct elf_prstatus` of a vCPU.
fn status(vcpu: &CoreVcpu, process: u32) -> Vec<u8> {
    let CoreVcpu {
        registers: r,
        control,
        segments,
    } = vcpu;
    let mut bytes = vec![0; STATUS_LEN];
    bytes[STATUS_PID..STATUS_PID + 4].copy_from_slice(&process.to_le_bytes());
    // The order of `struct user_regs_struct` (arch/x86/include/asm/user_64.h).
    let registers = [
        r.r15,
        r.r14,
        r.r13,
        r.r12,
        r.rbp,
        r.rbx,
        r.r11,
        r.r10,
        r.r9,
        r.r8,
        r.rax,
        r.rcx,
        r.rdx,
        r.rsi,
        r.rdi,
        // The number of the system call, which is unknown.
        u64::MAX,
        r.rip,
        segments.cs.into(),
        r.rflags,
        r.rsp,
        segments.ss.into(),
        control.fs_base,
        control.gs_base,
        segments.ds.into(),
        segments.es.into(),
        segments.fs.into(),
        segments.gs.into(),
    ];
    for (place, value) in bytes[STATUS_REGISTERS..].chunks_exact_mut(8).zip(registers) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use guest_state::GuestPhysAddr;

    use super::*;

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn each_range_of_memory_is_a_segment_at_a_page_of_the_file() {
        let range = |start, len| PhysRange {
            start: GuestPhysAddr(start),
            len,
        };
        let ranges = [range(0, 0x10_0000), range(1 << 32, 0x2000)];
        let vcpus = [CoreVcpu::default(); 2];
        let file = CoreFile::new(&ranges, &vcpus, Some(b"OSRELEASE=6.12"), 0xffff_8880 << 32);
        assert_eq!(file.memory[0].1 % PAGE, 0);
        assert_eq!(file.memory[1].1, file.memory[0].1 + 0x10_0000);
        assert_eq!(file.size, file.memory[1].1 + 0x2000);
        assert!(file.head.len() as u64 <= file.memory[0].1);
        let second = HEADER + 2 * PROGRAM_HEADER;
        let fields = [8, 16, 24, 32].map(|offset| word(&file.head, second + offset));
        let virt = (0xffff_8880 << 32) + (1 << 32);
        assert_eq!(fields, [file.memory[1].1, virt, 1 << 32, 0x2000]);
    }

    #[test]
    fn the_notes_are_those_that_their_header_spans() {
        let vcpu = CoreVcpu {
            registers: Registers {
                rip: 0x1234,
                rsp: 0x5678,
                ..Registers::default()
            },
            ..CoreVcpu::default()
        };
        let text = b"OSRELEASE=6.12";
        let file = CoreFile::new(&[], &[vcpu], Some(text), 0);
        let start = word(&file.head, HEADER + 8) as usize;
        let len = word(&file.head, HEADER + 32) as usize;
        assert_eq!(start + len, file.head.len());
        let notes = &file.head[start..];
        assert_eq!(&notes[12..17], b"CORE\0");
        // The name takes two words of 4 bytes.
        let status = &notes[20..20 + STATUS_LEN];
        assert_eq!(word(status, STATUS_REGISTERS + 16 * 8), 0x1234);
        assert_eq!(word(status, STATUS_REGISTERS + 19 * 8), 0x5678);
        let rest = &notes[20 + STATUS_LEN..];
        assert_eq!(&rest[12..22], b"VMCOREINFO");
        assert_eq!(&rest[24..24 + text.len()], text);
        assert_eq!(rest.len() % 4, 0);
    }

    #[test]
    fn without_a_kernel_there_is_no_note_of_it() {
        let file = CoreFile::new(&[], &[], None, 0);
        assert_eq!(file.head.len(), HEADER + PROGRAM_HEADER);
        assert_eq!(&file.head[..4], b"\x7fELF");
    }
}
