//! The words of a kernel that hold absolute addresses.
//!
//! Source: Linux `arch/x86/boot/compressed/misc.c` (`handle_relocations`) and `arch/x86/tools/relocs.c`. A bzImage with
//! `CONFIG_X86_NEED_RELOCS` has, behind the vmlinux, lists of places, each an address as linked of which the lower 32
//! bits are kept (u32). A list is read from its end to the 0 before it. From the end of the file on:
//!
//! | list | what is at such a place |
//! | --- | --- |
//! | 32 bits | the lower half of an address, to which the move is added |
//! | 32 bits, inverse | a distance from the code to a per-CPU variable, from which the move is taken away; up to 6.14 |
//! | 64 bits | an address, to which the move is added |

use std::ops::Range;

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_NOBITS};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use crate::file_segments::FileSegments;

/// `__START_KERNEL_map` (`arch/x86/include/asm/page_64_types.h`): the virtual address at which physical address 0 would
/// be by the kernel's links. The places are so translated, also those of per-CPU variables that are linked at 0.
const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Bytes of an entry.
const ENTRY: usize = 4;

/// The places of a kernel's absolute addresses: physical addresses as linked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Relocations {
    halves: Vec<u64>,
    inverse: Vec<u64>,
    words: Vec<u64>,
}

impl Relocations {
    /// Reads the lists behind a vmlinux; they are empty if it has none.
    pub(crate) fn behind(file: &[u8]) -> Self {
        let Some(behind) = end_of_elf(file).and_then(|end| file.get(end..)) else {
            return Self::default();
        };
        let mut lists = behind.len() / ENTRY;
        let start = behind.len() % ENTRY;
        let entries = behind[start..].as_chunks::<ENTRY>().0;
        let mut list = || -> Option<Vec<u64>> {
            let end = lists;
            while lists > 0 {
                lists -= 1;
                if entries[lists] == [0; ENTRY] {
                    return Some(entries[lists + 1..end].iter().map(|e| place(*e)).collect());
                }
            }
            None
        };
        let (Some(halves), Some(second)) = (list(), list()) else {
            return Self::default();
        };
        let (inverse, words) = match list() {
            Some(words) => (second, words),
            None => (Vec::new(), second),
        };
        Self {
            halves,
            inverse,
            words,
        }
    }

    /// Finds by how much a kernel has moved, from the first of these words that is in memory; 0 if none is.
    pub(crate) fn find_move(
        &self,
        file: &[u8],
        segments: &FileSegments,
        in_memory: impl Fn(u64) -> Option<u32>,
    ) -> u64 {
        let places = self.halves.iter().chain(&self.words);
        let mut found = places.filter_map(|place| {
            let at = segments.offset(*place, ENTRY)?;
            let linked = u32::from_le_bytes(*file.get(at..)?.first_chunk()?);
            Some(in_memory(*place)?.wrapping_sub(linked))
        });
        // The kernel stays in the upper 2 GiB, so 31 bits are enough.
        u64::from(found.next().unwrap_or_default())
    }

    /// Changes the file as the decompressor changes the kernel.
    pub(crate) fn apply(&self, file: &mut [u8], segments: &FileSegments, moved: u64) {
        let half = moved as u32;
        for (places, half) in [(&self.halves, half), (&self.inverse, half.wrapping_neg())] {
            for word in places {
                change(file, segments, *word, |word: [u8; 4]| {
                    u32::from_le_bytes(word).wrapping_add(half).to_le_bytes()
                });
            }
        }
        for word in &self.words {
            change(file, segments, *word, |word: [u8; 8]| {
                u64::from_le_bytes(word).wrapping_add(moved).to_le_bytes()
            });
        }
    }
}

fn place(entry: [u8; ENTRY]) -> u64 {
    let linked = i64::from(i32::from_le_bytes(entry)).cast_unsigned();
    linked.wrapping_sub(START_KERNEL_MAP)
}

fn change<const N: usize>(
    file: &mut [u8],
    segments: &FileSegments,
    place: u64,
    change: impl Fn([u8; N]) -> [u8; N],
) {
    let at = segments.offset(place, N);
    let word = at.and_then(|at| file.get_mut(at..)?.first_chunk_mut::<N>());
    if let Some(word) = word {
        *word = change(*word);
    }
}

/// Returns where the ELF file ends, in bytes: behind the last of its headers and of the parts that they describe.
fn end_of_elf(file: &[u8]) -> Option<usize> {
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let segments = header.program_headers(LittleEndian, file).ok()?;
    let sections = header.section_headers(LittleEndian, file).ok()?;
    let table = |start: u64, len: usize| start..start.saturating_add(len as u64);
    let range = |(start, len): (u64, u64)| start..start.saturating_add(len);
    let mut parts: Vec<Range<u64>> = vec![
        table(header.e_phoff(LittleEndian), size_of_val(segments)),
        table(header.e_shoff(LittleEndian), size_of_val(sections)),
    ];
    parts.extend(segments.iter().map(|s| range(s.file_range(LittleEndian))));
    let in_file = sections
        .iter()
        .filter(|s| s.sh_type(LittleEndian) != SHT_NOBITS);
    parts.extend(in_file.map(|s| {
        let (start, len) = (s.sh_offset(LittleEndian), s.sh_size(LittleEndian));
        range((start, len))
    }));
    let end = parts.into_iter().map(|part| part.end).max()?;
    usize::try_from(end).ok()
}
