//! Detours that follow pointers. Whatever the pointers and the page tables are, a detour takes the same values as an
//! interpreter that walks the same page tables.

pub(super) mod any_memory;
mod stack;
mod task;

use guest_state::x86_64::page_entry::{LARGE, PRESENT};
use guest_state::x86_64::paging::{PageTables, PagingMode, walk};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, Registers};
use probe_engine::detour::{Dead, Environment, Pointers, Purpose, Tag, generate};
use seeded_random::Random;

use crate::case::Case;
use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;
use crate::jump::ram::{DIRECT_MAP, HIGH, LOW, Ram};
use crate::jump::region;

/// `mov $7,%eax`
const CODE: [u8; 5] = [0xb8, 7, 0, 0, 0];
const PAGE: u64 = 4096;
/// Pages of page tables at the beginning of the low RAM; the pages that they map follow.
const TABLES: u64 = 64;
const CELL: u32 = 4;

/// A guest's memory with random page tables, and addresses that are worth following.
pub(super) struct World {
    ram: Ram,
    levels: u8,
    addresses: Vec<u64>,
}

impl World {
    pub(super) fn new(random: &mut Random) -> Self {
        let levels = if random.once_in(3) { 5 } else { 4 };
        let mut world = Self {
            ram: Ram::new(),
            levels,
            addresses: Vec::new(),
        };
        let mut used = 1;
        for _ in 0..24 {
            world.map(random, &mut used);
        }
        for at in [LOW.start.0 + TABLES * PAGE, HIGH.start.0] {
            let mut bytes = vec![0; (3 * PAGE) as usize];
            random.fill(&mut bytes);
            // Zeros, so that texts end.
            for byte in &mut bytes {
                if *byte < 8 {
                    *byte = 0;
                }
            }
            world.ram.write(GuestPhysAddr(at), &bytes).unwrap();
            // Pointers to follow.
            for _ in 0..40 {
                let to = at + random.below(3 * PAGE - 8);
                let address = world.pointer(random);
                world.put(to, address);
            }
        }
        world
    }

    fn put(&self, at: u64, word: u64) {
        self.ram.write_u64(GuestPhysAddr(at), word).unwrap();
    }

    /// Returns the address of physical memory that may be mapped, or of none.
    fn frame(random: &mut Random) -> u64 {
        match random.below(8) {
            0 => random.bits() & 0x000f_ffff_ffff_f000,
            1 => LOW.end().0 - PAGE,
            2 => LOW.end().0,
            3 => HIGH.end().0 - PAGE,
            4 | 5 => HIGH.start.0 + PAGE * random.below(3),
            _ => LOW.start.0 + PAGE * (TABLES + random.below(3)),
        }
    }

    /// Maps a page somewhere, or two in a row.
    fn map(&mut self, random: &mut Random, used: &mut u64) {
        let bits = 12 + 9 * u32::from(self.levels);
        let any = random.bits() & !(PAGE - 1);
        let unused = 64 - bits;
        let start = ((any << unused).cast_signed() >> unused).cast_unsigned();
        for page in 0..1 + random.below(2) {
            let at = start.wrapping_add(page * PAGE);
            let mut table = LOW.start.0;
            for level in (1..=self.levels).rev() {
                let shift = 12 + 9 * (u32::from(level) - 1);
                let slot = table + (at >> shift & 0x1ff) * 8;
                let entry = self.ram.read_u64(GuestPhysAddr(slot)).unwrap_or(0);
                let is_large = matches!(level, 2 | 3) && random.once_in(6);
                if level == 1 || is_large {
                    let frame = Self::frame(random) & !((1 << shift) - 1);
                    let large = if is_large { LARGE } else { 0 };
                    let present = if random.once_in(8) { 0 } else { PRESENT };
                    if entry & PRESENT == 0 && Ram::is_ram(slot, 8) {
                        self.put(slot, frame | large | present);
                    }
                    break;
                }
                if entry & (PRESENT | LARGE) == PRESENT {
                    table = entry & 0x000f_ffff_ffff_f000;
                    if !Ram::is_ram(table, PAGE) {
                        break;
                    }
                    continue;
                }
                if entry & PRESENT != 0 || *used >= TABLES {
                    break;
                }
                table = match random.once_in(20) {
                    true => Self::frame(random),
                    false => LOW.start.0 + PAGE * *used,
                };
                *used += 1;
                self.put(slot, table | PRESENT);
                if !Ram::is_ram(table, PAGE) {
                    break;
                }
            }
            self.addresses.push(at);
        }
    }

    /// A pointer: to something that is mapped, near its ends, into the direct mapping, or anywhere.
    pub(super) fn pointer(&self, random: &mut Random) -> u64 {
        let near = |random: &mut Random, page: u64| {
            let offset = match random.below(4) {
                0 => PAGE - 1 - random.below(12),
                1 => random.below(12),
                _ => random.below(PAGE),
            };
            page.wrapping_add(offset)
        };
        match random.below(8) {
            0 => random.bits(),
            1 => random.value(),
            2 => {
                let frame = Self::frame(random);
                near(random, DIRECT_MAP.wrapping_add(frame))
            }
            _ => {
                let page = random.pick(&self.addresses);
                near(random, page)
            }
        }
    }

    pub(super) fn pointers(&self) -> Pointers {
        self.ram.pointers(self.levels)
    }

    /// Reads as a detour may: byte by byte, as adjacent bytes may be on different pages.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let mode = match self.levels {
            5 => PagingMode::FiveLevel,
            _ => PagingMode::FourLevel,
        };
        let tables = PageTables {
            root: LOW.start,
            mode,
            no_execute: true,
        };
        for (byte, offset) in into.iter_mut().zip(0..) {
            let at = at.wrapping_add(offset);
            let direct = at.wrapping_sub(DIRECT_MAP);
            let phys = match Ram::is_ram(direct, 1) {
                true => direct,
                false => match walk(&self.ram, tables, GuestVirtAddr(at)) {
                    Ok(found) => found.phys.0,
                    Err(_) => return false,
                },
            };
            let mut one = [0];
            if self.ram.read(GuestPhysAddr(phys), &mut one).is_err() {
                return false;
            }
            *byte = one[0];
        }
        true
    }
}

struct Probed<'a> {
    cpu: &'a mut Cpu,
    blocks: &'a Blocks,
    environment: Environment,
    registers: Registers,
}

impl Probed<'_> {
    /// Returns the records that a hit leaves, and the increase of its counter. Everything else must be as without a
    /// probe.
    fn hit(&mut self, purpose: &Purpose, dead: Dead) -> (Vec<Vec<u64>>, u32) {
        let layout = self.cpu.layout();
        let mut case = Case::exactly(&CODE, self.registers, &[], layout).unwrap();
        case.gs_base = self.blocks.gs_base(0);
        let region = region::at(layout.code, &CODE).unwrap();
        let tag = Tag {
            number: 9,
            cell: CELL,
        };
        let at = GuestVirtAddr(layout.copy);
        let detour = generate(&self.environment, &region, dead, purpose, tag, at).unwrap();
        let patched = region::patched(&region, &detour);
        let before = self.blocks.cell(0, CELL);
        let state = self
            .cpu
            .execute_patched(&case, &patched, &detour.code, layout.code)
            .unwrap();
        let mut expected = Registers {
            rax: 7,
            rip: layout.code + CODE.len() as u64,
            ..case.registers
        };
        if dead.flags {
            expected.rflags = state.registers.rflags;
        }
        assert_eq!((state.registers, state.fault), (expected, None));
        let records = self.blocks.drain(0);
        let records = records.into_iter().map(|record| record.registers).collect();
        (records, self.blocks.cell(0, CELL).wrapping_sub(before))
    }
}
