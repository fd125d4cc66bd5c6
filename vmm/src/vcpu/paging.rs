//! Guest memory as the processor itself reads and writes it, for the kernel, when it delivers an
//! exception: by the guest's page tables, and only where those let it.
//!
//! `KVM_TRANSLATE` doesn't do for it: it says of every page that it can be written
//! (arch/x86/kvm/x86.c, `kvm_arch_vcpu_ioctl_translate`).
//!
//! Sources: SDM vol. 3, 4.5 (four and five levels) and 4.6 (access rights). The
//! tables belong to an untrusted guest: a walk reads one entry a level.

use kvm_bindings::kvm_sregs;

use super::deliver::VirtMemory;
use crate::ram::GuestRam;

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMAP: u64 = 1 << 21;
/// Protection keys of user pages, and of the kernel's.
const CR4_PKE: u64 = 1 << 22;
const CR4_PKS: u64 = 1 << 24;
const EFER_LMA: u64 = 1 << 10;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The entry maps a large page.
const LARGE: u64 = 1 << 7;
/// Bits 12 to 51. An address beyond what the processor has is outside memory.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The memory type (PAT) in the entry of a large page.
const LARGE_PAT: u64 = 1 << 12;
const PAGE: u64 = 0x1000;

/// What the kernel of a vCPU can read and write.
pub(super) struct KernelMemory<'a> {
    ram: &'a GuestRam,
    sregs: &'a kvm_sregs,
}

impl<'a> KernelMemory<'a> {
    pub(super) fn new(ram: &'a GuestRam, sregs: &'a kvm_sregs) -> Self {
        Self { ram, sregs }
    }

    /// Where an address is, if the access raises no exception. None as well where only the
    /// processor can tell, and where it would have to set an entry's dirty bit.
    fn translate(&self, at: u64, write: bool) -> Option<u64> {
        let sregs = self.sregs;
        if sregs.cr0 & CR0_PG == 0 || sregs.efer & EFER_LMA == 0 {
            return None;
        }
        let levels: u32 = if sregs.cr4 & CR4_LA57 == 0 { 4 } else { 5 };
        let unused = 64 - (12 + 9 * levels);
        if (at << unused).cast_signed() >> unused != at.cast_signed() {
            return None;
        }
        let mut table = sregs.cr3 & ADDRESS;
        let mut all = u64::MAX;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * level;
            let mut entry = [0; 8];
            self.ram
                .read(table + (at >> shift & 0x1ff) * 8, &mut entry)
                .ok()?;
            let entry = u64::from_le_bytes(entry);
            all &= entry;
            if entry & PRESENT == 0 {
                return None;
            }
            let large = level > 0 && entry & LARGE != 0;
            if level > 0 && !large {
                table = entry & ADDRESS;
                continue;
            }
            let within = (1 << shift) - 1;
            let reserved = ADDRESS & within & !LARGE_PAT;
            // There are no pages of 512 GiB and more.
            if large && (level > 2 || entry & reserved != 0) {
                return None;
            }
            let allowed = self.allows(all, write) && (!write || entry & DIRTY != 0);
            return allowed.then_some(entry & ADDRESS & !within | at & within);
        }
        None
    }

    /// By what the entries of all levels have in common.
    fn allows(&self, all: u64, write: bool) -> bool {
        let kept = if all & USER != 0 {
            CR4_SMAP | CR4_PKE
        } else {
            CR4_PKS
        };
        let writable = all & WRITABLE != 0 || self.sregs.cr0 & CR0_WP == 0;
        self.sregs.cr4 & kept == 0 && (!write || writable && all & ACCESSED != 0)
    }

    /// The physical pieces of a range, none of them if not all of it can be accessed.
    fn pieces(&self, at: u64, len: usize, write: bool) -> Option<Vec<(u64, usize)>> {
        let mut pieces = Vec::with_capacity(2);
        let mut done = 0;
        while done < len {
            let virt = at.checked_add(done as u64)?;
            let piece = (len - done).min((PAGE - virt % PAGE) as usize);
            pieces.push((self.translate(virt, write)?, piece));
            done += piece;
        }
        Some(pieces)
    }
}

impl VirtMemory for KernelMemory<'_> {
    fn read(&self, at: u64, mut into: &mut [u8]) -> Option<()> {
        for (phys, len) in self.pieces(at, into.len(), false)? {
            let (piece, rest) = into.split_at_mut(len);
            self.ram.read(phys, piece).ok()?;
            into = rest;
        }
        Some(())
    }

    fn write(&self, at: u64, mut from: &[u8]) -> Option<()> {
        for (phys, len) in self.pieces(at, from.len(), true)? {
            let (piece, rest) = from.split_at(len);
            self.ram.write_as_guest(phys, piece).ok()?;
            from = rest;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of the test's guest, a page each: four levels, the last of 4 KiB pages.
    const TABLES: [u64; 4] = [0x1000, 0x2000, 0x3000, 0x4000];
    /// What the first 4 KiB pages map, from this address on.
    const BASE: u64 = 0xffff_8000_0020_0000;
    const FRAMES: u64 = 0x1_0000;
    const PLAIN: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY;

    fn put(ram: &GuestRam, at: u64, word: u64) {
        ram.write(at, &word.to_le_bytes()).unwrap();
    }

    /// A guest that maps `entries` from [`BASE`] on, below tables with `table` as their flags.
    fn guest(table: u64, entries: &[u64]) -> (GuestRam, kvm_sregs) {
        let ram = GuestRam::new(64).unwrap();
        for (level, pair) in (1..4).rev().zip(TABLES.windows(2)) {
            let index = BASE >> (12 + 9 * level) & 0x1ff;
            put(&ram, pair[0] + index * 8, pair[1] | table);
        }
        for (index, entry) in (0..).zip(entries) {
            put(&ram, TABLES[3] + index * 8, *entry);
        }
        let sregs = kvm_sregs {
            cr0: CR0_PG | CR0_WP,
            cr3: TABLES[0] | 0x18,
            efer: EFER_LMA,
            ..Default::default()
        };
        (ram, sregs)
    }

    #[test]
    fn a_write_goes_where_the_processor_s_would_and_nowhere_else() {
        let frame = |number: u64, flags| (FRAMES + number * PAGE) | flags;
        // Flags of the tables and of the page, CR4, CR0 less WP, whether it can be written.
        let cases = [
            (PLAIN, PLAIN, 0, false, true),
            (PLAIN, PLAIN & !WRITABLE, 0, false, false),
            (PLAIN, PLAIN & !WRITABLE, 0, true, true),
            (PLAIN & !WRITABLE, PLAIN, 0, false, false),
            (PLAIN, PLAIN & !PRESENT, 0, false, false),
            (PLAIN & !PRESENT, PLAIN, 0, false, false),
            (PLAIN, PLAIN & !DIRTY, 0, false, false),
            (PLAIN, PLAIN & !ACCESSED, 0, false, false),
            (PLAIN | USER, PLAIN | USER, 0, false, true),
            (PLAIN | USER, PLAIN | USER, CR4_SMAP, false, false),
            (PLAIN | USER, PLAIN, CR4_SMAP, false, true),
            (PLAIN | USER, PLAIN | USER, CR4_PKE, false, false),
            (PLAIN, PLAIN, CR4_PKE, false, true),
            (PLAIN, PLAIN, CR4_PKS, false, false),
        ];
        for (number, (table, page, cr4, no_wp, allowed)) in (0..).zip(cases) {
            let (ram, mut sregs) = guest(table, &[frame(0, page)]);
            sregs.cr4 = cr4;
            sregs.cr0 &= if no_wp { !CR0_WP } else { u64::MAX };
            let memory = KernelMemory::new(&ram, &sregs);
            let written = memory.write(BASE + 8, &[7; 8]);
            assert_eq!(written.is_some(), allowed, "case {number}");
            let mut bytes = [0; 8];
            ram.read(FRAMES + 8, &mut bytes).unwrap();
            assert_eq!(bytes == [7; 8], allowed, "case {number}");
        }
    }

    #[test]
    fn a_range_over_two_pages_is_written_whole_or_not_at_all() {
        for second in [PLAIN, PLAIN & !WRITABLE] {
            let pages = [FRAMES | PLAIN, (FRAMES + 4 * PAGE) | second];
            let (ram, sregs) = guest(PLAIN, &pages);
            let memory = KernelMemory::new(&ram, &sregs);
            let allowed = second == PLAIN;
            let written = memory.write(BASE + PAGE - 4, &[1, 2, 3, 4, 5, 6]);
            assert_eq!(written.is_some(), allowed);
            let mut back = [9; 6];
            memory.read(BASE + PAGE - 4, &mut back).unwrap();
            assert_eq!(back, if allowed { [1, 2, 3, 4, 5, 6] } else { [0; 6] });
        }
    }

    #[test]
    fn code_of_the_arena_is_never_written_even_where_the_guest_has_mapped_it_writable() {
        let code = GuestRam::new(64).unwrap().arena().code.phys;
        let (ram, sregs) = guest(PLAIN, &[code | PLAIN]);
        let memory = KernelMemory::new(&ram, &sregs);
        assert_eq!(memory.write(BASE, &[1]), None);
        let mut byte = [9];
        memory.read(BASE, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn large_pages_and_five_levels_are_walked() {
        let (ram, mut sregs) = guest(PLAIN, &[]);
        let at = BASE >> 21 & 0x1ff;
        put(&ram, TABLES[2] + at * 8, 0x60_0000 | PLAIN | LARGE);
        let wrote = |sregs: &kvm_sregs| KernelMemory::new(&ram, sregs).write(BASE + 0x1234, &[5]);
        assert!(wrote(&sregs).is_some());
        let mut byte = [0];
        ram.read(0x60_1234, &mut byte).unwrap();
        assert_eq!(byte, [5]);
        // BASE in a table above.
        put(&ram, 0x5000 + 0x1ff * 8, TABLES[0] | PLAIN);
        (sregs.cr3, sregs.cr4) = (0x5000, CR4_LA57);
        assert!(wrote(&sregs).is_some());
        put(&ram, TABLES[2] + at * 8, 0x60_2000 | PLAIN | LARGE);
        assert_eq!(wrote(&sregs), None, "reserved bits");
    }

    #[test]
    fn what_is_no_address_and_tables_outside_memory_are_refused() {
        let (ram, mut sregs) = guest(PLAIN, &[FRAMES | PLAIN]);
        let memory = |sregs: &kvm_sregs, at| KernelMemory::new(&ram, sregs).read(at, &mut [0; 8]);
        assert!(memory(&sregs, BASE).is_some());
        assert_eq!(memory(&sregs, 0x8000_0020_0000), None);
        assert_eq!(memory(&sregs, u64::MAX - 3), None);
        sregs.cr3 = 0x000f_ffff_ffff_f000;
        assert_eq!(memory(&sregs, BASE), None);
        sregs.cr0 = 0;
        assert_eq!(memory(&sregs, BASE), None);
    }
}
