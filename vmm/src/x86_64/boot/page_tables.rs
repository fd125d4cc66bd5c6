//! The page tables in force at the kernel's entry: the first 4 GiB, each
//! address mapped to itself, in pages of 2 MiB (Intel SDM vol. 3, 4.5).
//!
//! The boot protocol asks for an identity map of the kernel, the zero page and
//! the command line (`Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol").

use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::page_entry::{ACCESSED, DIRTY, LARGE, PRESENT, WRITABLE};
use guest_state::x86_64::paging::PageSize;

use crate::x86_64::layout;

const LARGE_PAGE: u64 = PageSize::Size2M.bytes();
/// Entries in one table.
const ENTRIES: u64 = 512;
/// Page directories, each for 1 GiB.
const DIRECTORIES: u64 = 4;

/// The processor sets these at the first access and write. They are set from the start
/// here, which saves it the writes.
const USED: u64 = ACCESSED | DIRTY;

/// The tables as they go into guest memory at [`layout::PAGE_TABLES`]: the PML4,
/// the page directory pointer table, the page directories.
pub(super) fn bytes() -> Vec<u8> {
    let pointers = layout::PAGE_TABLES + PAGE_SIZE;
    let directories = pointers + PAGE_SIZE;
    let mut entries = vec![0; (ENTRIES * 2) as usize];
    entries[0] = pointers | PRESENT | WRITABLE | ACCESSED;
    for (directory, entry) in (0..DIRECTORIES).zip(&mut entries[ENTRIES as usize..]) {
        *entry = (directories + directory * PAGE_SIZE) | PRESENT | WRITABLE | ACCESSED;
    }
    let pages = 0..DIRECTORIES * ENTRIES;
    entries.extend(pages.map(|page| (page * LARGE_PAGE) | PRESENT | WRITABLE | USED | LARGE));
    entries.into_iter().flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks the tables as a processor does.
    fn walk(tables: &[u8], at: u64) -> Option<u64> {
        let entry = |table: u64, index: u64| {
            let from = (table - layout::PAGE_TABLES + index % ENTRIES * 8) as usize;
            let entry = u64::from_le_bytes(tables[from..from + 8].try_into().unwrap());
            (entry & 3 == 3).then_some(entry)
        };
        let address = |entry: u64| entry & 0x000f_ffff_ffff_f000;
        let pointers = address(entry(layout::PAGE_TABLES, at >> 39)?);
        let directory = address(entry(pointers, at >> 30)?);
        let page = entry(directory, at >> 21)?;
        assert_eq!(page & LARGE, LARGE);
        Some(address(page) + at % LARGE_PAGE)
    }

    #[test]
    fn the_first_4_gib_are_mapped_to_themselves_and_nothing_else_is() {
        let tables = bytes();
        for at in [
            0,
            0x7000,
            0x20_0000 - 1,
            0x20_0000,
            0x100_0200,
            0xc000_0123,
            0xffff_ffff,
        ] {
            assert_eq!(walk(&tables, at), Some(at));
        }
        for at in [
            1 << 32,
            1 << 39,
            0xffff_8000_0000_0000,
            0xffff_ffff_8100_0000,
        ] {
            assert_eq!(walk(&tables, at), None);
        }
    }

    #[test]
    fn the_tables_end_below_the_command_line() {
        assert!(layout::PAGE_TABLES + bytes().len() as u64 <= layout::CMDLINE);
    }
}
