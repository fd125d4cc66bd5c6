use guest_state::testing::TestMemory;
use guest_state::{GuestPhysAddr, GuestVirtAddr, Segment};

use super::*;

/// The virtual address that stands for physical address 0.
const MAP: u64 = 0xffff_ffff_8000_0000;
/// Where the text is linked to be, and variables of a CPU that are linked at 0.
const TEXT: u64 = 0x100_0000;
const PER_CPU: u64 = 0x100_1000;
/// Bytes of each segment in the file.
const LEN: usize = 0x40;
const HEADERS: usize = 64 + 2 * 56;
/// Bytes of memory.
const MEMORY: usize = 0x400_0000;

/// In the text: the lower half of an address, an address, and a distance to a variable of a CPU. Among the variables:
/// an address.
const HALF: u64 = TEXT + 0x11;
const WORD: u64 = TEXT + 0x20;
const DISTANCE: u64 = TEXT + 0x31;
const VARIABLE: u64 = PER_CPU + 8;

/// Makes a vmlinux of text and variables of a CPU, entered 16 bytes into its text, followed by these lists.
fn vmlinux(lists: &[&[u64]]) -> Vec<u8> {
    let mut file = vec![0; HEADERS];
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2_u16.to_le_bytes()); // e_type: ET_EXEC
    put(18, &62_u16.to_le_bytes()); // e_machine: EM_X86_64
    put(20, &1_u32.to_le_bytes()); // e_version
    put(24, &(TEXT + 16).to_le_bytes()); // e_entry
    put(32, &64_u64.to_le_bytes()); // e_phoff
    put(52, &64_u16.to_le_bytes()); // e_ehsize
    put(54, &56_u16.to_le_bytes()); // e_phentsize
    put(56, &2_u16.to_le_bytes()); // e_phnum
    for (index, (virt, phys)) in [(MAP + TEXT, TEXT), (0, PER_CPU)].into_iter().enumerate() {
        let at = 64 + 56 * index;
        put(at, &1_u32.to_le_bytes()); // PT_LOAD
        put(at + 8, &((HEADERS + LEN * index) as u64).to_le_bytes());
        put(at + 16, &virt.to_le_bytes());
        put(at + 24, &phys.to_le_bytes());
        put(at + 32, &(LEN as u64).to_le_bytes());
        put(at + 40, &(2 * LEN as u64).to_le_bytes());
    }
    file.extend([0x90; LEN]);
    file.extend([0x55; LEN]);
    let mut put = |phys: u64, bytes: &[u8]| {
        let at = offset(phys);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(HALF, &0x8100_0040_u32.to_le_bytes());
    put(WORD, &(MAP + TEXT + 0x50).to_le_bytes());
    put(DISTANCE, &0x7eff_ffd0_u32.to_le_bytes());
    put(VARIABLE, &(MAP + TEXT).to_le_bytes());
    for list in lists {
        file.extend([0; 4]);
        let places = list.iter().map(|phys| (MAP + phys) as u32);
        file.extend(places.flat_map(u32::to_le_bytes));
    }
    file
}

fn offset(phys: u64) -> usize {
    match phys >= PER_CPU {
        true => HEADERS + LEN + (phys - PER_CPU) as usize,
        false => HEADERS + (phys - TEXT) as usize,
    }
}

/// The lists of a kernel up to 6.14: words, inverse halves, halves.
const OLDER: [&[u64]; 3] = [&[WORD, VARIABLE], &[DISTANCE], &[HALF]];
/// Those of a newer one.
const NEWER: [&[u64]; 2] = [&[WORD, VARIABLE], &[HALF]];

/// Makes memory in which a kernel has moved.
fn moved(by: Move, inverse: bool) -> TestMemory {
    let memory = TestMemory::new(MEMORY);
    let file = vmlinux(&[]);
    for phys in [TEXT, PER_CPU] {
        let bytes = &file[offset(phys)..][..LEN];
        memory
            .write(GuestPhysAddr(phys.wrapping_add(by.phys)), bytes)
            .unwrap();
    }
    let put = |phys: u64, bytes: &[u8]| {
        let at = GuestPhysAddr(phys.wrapping_add(by.phys));
        memory.write(at, bytes).unwrap();
    };
    put(HALF, &(0x8100_0040 + by.virt as u32).to_le_bytes());
    put(WORD, &(MAP + TEXT + 0x50 + by.virt).to_le_bytes());
    put(VARIABLE, &(MAP + TEXT + by.virt).to_le_bytes());
    if inverse {
        put(DISTANCE, &(0x7eff_ffd0 - by.virt as u32).to_le_bytes());
    }
    memory
}

const AWAY: Move = Move {
    virt: 0x2160_0000,
    phys: 0x1e0_0000,
};

fn entry(by: Move) -> GuestPhysAddr {
    GuestPhysAddr(TEXT + 16).checked_add(by.phys).unwrap()
}

#[test]
fn a_kernel_that_has_moved_is_found_and_its_file_is_one_that_is_linked_there() {
    for (lists, inverse) in [(&OLDER[..], true), (&NEWER[..], false)] {
        let memory = moved(AWAY, inverse);
        let mut file = vmlinux(lists);
        let found = Move::relocate(&mut file, entry(AWAY), &memory).unwrap();
        assert_eq!(found, AWAY);
        for phys in [TEXT, PER_CPU] {
            let mut there = [0; LEN];
            let at = GuestPhysAddr(phys + AWAY.phys);
            memory.read(at, &mut there).unwrap();
            assert_eq!(&file[offset(phys)..][..LEN], there);
        }
        let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        assert_eq!(word(24), entry(AWAY).0);
        let text = (word(64 + 16), word(64 + 24));
        assert_eq!(text, (MAP + TEXT + AWAY.virt, TEXT + AWAY.phys));
        let variables = (word(120 + 16), word(120 + 24));
        assert_eq!(variables, (0, PER_CPU + AWAY.phys));
    }
}

#[test]
fn the_symbols_of_a_file_that_is_not_stripped_move_with_the_kernel() {
    use crate::symbols::Symbols;
    use crate::symbols::synthetic::{TEXT as LINKED, TEXT_LEN, unstripped};

    let symbols = [(0, "_stext"), (0x40, "inside"), (0x80, "_etext")];
    let symbols = symbols.map(|(at, name)| (LINKED + at, 'T', name.to_owned()));
    let mut file = unstripped(&symbols);
    // The entry and the physical address of the only segment.
    file[24..32].copy_from_slice(&TEXT.to_le_bytes());
    file[88..96].copy_from_slice(&TEXT.to_le_bytes());
    let half = 0x1000 + 0x10;
    file[half..half + 4].copy_from_slice(&0x8100_0040_u32.to_le_bytes());
    file.extend([0; 4]);
    file.extend([0; 4]);
    file.extend((LINKED as u32 + 0x10).to_le_bytes());
    let memory = TestMemory::new(MEMORY);
    let mut text = file[0x1000..][..TEXT_LEN as usize].to_vec();
    let moved = 0x8100_0040 + AWAY.virt as u32;
    text[half - 0x1000..][..4].copy_from_slice(&moved.to_le_bytes());
    let place = GuestPhysAddr(TEXT + AWAY.phys);
    memory.write(place, &text).unwrap();
    assert_eq!(Move::relocate(&mut file, place, &memory).unwrap(), AWAY);
    let symbols = Symbols::from_vmlinux(&file).unwrap();
    let inside = symbols.find("inside").unwrap().address;
    assert_eq!(inside.0, LINKED + 0x40 + AWAY.virt);
}

#[test]
fn a_kernel_that_has_stayed_has_not_moved() {
    let stayed = Move::default();
    let mut file = vmlinux(&OLDER);
    let before = file.clone();
    let found = Move::relocate(&mut file, entry(stayed), &moved(stayed, true)).unwrap();
    assert_eq!((found, file), (stayed, before));
}

#[test]
fn a_kernel_without_relocations_can_move_in_physical_memory_only() {
    let by = Move { virt: 0, ..AWAY };
    let mut file = vmlinux(&[]);
    assert_eq!(
        Move::relocate(&mut file, entry(by), &moved(by, false)).unwrap(),
        by
    );
}

#[test]
fn another_kernel_than_the_file_s_is_refused() {
    let memory = moved(AWAY, true);
    let at = GuestPhysAddr(PER_CPU + AWAY.phys + 0x3f);
    memory.write(at, &[0x56]).unwrap();
    let error = Move::relocate(&mut vmlinux(&OLDER), entry(AWAY), &memory).unwrap_err();
    assert!(
        matches!(error, MoveError::Differs { at, .. } if at.0 == 0),
        "{error}"
    );
    let outside = GuestPhysAddr(MEMORY as u64);
    let error = Move::relocate(&mut vmlinux(&OLDER), outside, &memory).unwrap_err();
    assert!(matches!(error, MoveError::Memory { .. }), "{error}");
}

#[test]
fn lists_that_are_cut_off_or_name_no_place_of_the_kernel_do_no_harm() {
    let whole = vmlinux(&OLDER);
    for len in 0..whole.len() {
        let _any_answer =
            Move::relocate(&mut whole[..len].to_vec(), entry(AWAY), &moved(AWAY, true));
    }
    let astray: [&[u64]; 2] = [
        &[WORD, VARIABLE, 0x7fff_fffc],
        &[HALF, TEXT - 2, TEXT + 0x3e, 0],
    ];
    let mut file = vmlinux(&astray);
    let found = Move::relocate(&mut file, entry(AWAY), &moved(AWAY, false));
    assert_eq!(found.unwrap(), AWAY);
}

#[test]
fn segments_move_but_variables_of_a_cpu_stay_at_their_virtual_address() {
    let segment = |virt, phys| Segment {
        virt: GuestVirtAddr(virt),
        phys: GuestPhysAddr(phys),
        len: 1,
    };
    assert_eq!(
        AWAY.segment(segment(MAP + TEXT, TEXT)),
        segment(MAP + TEXT + AWAY.virt, TEXT + AWAY.phys)
    );
    assert_eq!(
        AWAY.segment(segment(0, PER_CPU)),
        segment(0, PER_CPU + AWAY.phys)
    );
}
