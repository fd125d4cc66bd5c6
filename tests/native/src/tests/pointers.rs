//! Detours that follow pointers: what they take is what an interpreter takes that walks the same page tables,
//! whatever the pointers and the tables are.

use guest_kernel::context::TaskContext;
use guest_state::x86_64::page_entry::{LARGE, PRESENT};
use guest_state::x86_64::paging::{PageTables, PagingMode, walk};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, Registers};
use probe_engine::calls::layout as calls;
use probe_engine::condition::Relation;
use probe_engine::detour::{Dead, Environment, Pointers, Purpose, Tag, generate};
use probe_engine::fetch::Fetches;
use probe_engine::filter::{Filter, Number, Pattern, Subject, Text};
use probe_engine::probe::Capture;
use probe_engine::value::{Base, Bases, Load, Space, Take, Taken, Value, take};
use seeded_random::Random;

use crate::case::Case;
use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;
use crate::jump::ram::{DIRECT_MAP, HIGH, LOW, Ram};
use crate::jump::region;
use crate::report::proves;

/// `mov $7,%eax`
const CODE: [u8; 5] = [0xb8, 7, 0, 0, 0];
const PAGE: u64 = 4096;
/// Page tables at the beginning of the low RAM; behind them is what they map.
const TABLES: u64 = 64;
const CELL: u32 = 4;

/// A guest's memory with random page tables, and addresses that are worth following.
struct World {
    ram: Ram,
    levels: u8,
    addresses: Vec<u64>,
}

impl World {
    fn new(random: &mut Random) -> Self {
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
            // Texts end now and then.
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

    /// Physical memory that may be mapped, and some that is none.
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
    fn pointer(&self, random: &mut Random) -> u64 {
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

    fn pointers(&self) -> Pointers {
        self.ram.pointers(self.levels)
    }

    /// Reads as a detour may: byte by byte, as neighbours may be on other pages.
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
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

fn load(random: &mut Random) -> Load {
    let offset = match random.below(4) {
        0 => random.value().cast_signed(),
        1 => -(random.below(64) as i64),
        _ => random.below(64) as i64,
    };
    let space = match random.once_in(3) {
        true => Space::User,
        false => Space::Any,
    };
    Load { offset, space }
}

fn value(world: &World, random: &mut Random) -> Value {
    let base = match random.below(10) {
        0 => Base::Flags,
        1 => Base::InstructionPointer,
        2 => Base::Task,
        3 => Base::Cpu,
        4 => Base::Constant(world.pointer(random)),
        _ => Base::Register(random.below(16) as u8),
    };
    let loads = (0..random.below(3)).map(|_| load(random)).collect();
    let take = match random.below(5) {
        0 => Take::Word,
        4 => Take::Stack {
            at: load(random),
            most: random.pick(&[1, 8, 61, 500]),
        },
        1 => Take::Memory {
            at: load(random),
            len: random.pick(&[1, 2, 4, 8, 3, 24, 100]),
        },
        _ => Take::Text {
            at: load(random),
            most: random.pick(&[1, 8, 16, 61, 200]),
        },
    };
    Value { base, loads, take }
}

/// A comparison that is met now and then.
fn test(random: &mut Random, taken: &[Taken]) -> Filter {
    let index = random.below(taken.len().max(1) as u64) as usize;
    let bytes = match taken.get(index) {
        Some(Taken::Bytes(bytes)) => bytes.clone(),
        _ => Vec::new(),
    };
    let of_value = Number::Value {
        index,
        shift: random.below(9) as u8,
        width: 1 + random.below(48) as u8,
        signed: random.once_in(2),
    };
    if random.once_in(2) {
        let mut word = [0; 8];
        let len = bytes.len().min(8);
        word[..len].copy_from_slice(&bytes[..len]);
        let near = u64::from_le_bytes(word) >> 4;
        let of = match random.below(5) {
            0 => Number::Pid,
            1 => Number::Tgid,
            2 => Number::Cpu,
            // What is shorter has no more bits.
            _ if len < 8 => Number::Cpu,
            _ => of_value,
        };
        let other = random.value();
        return Filter::Number {
            of,
            relation: random.pick(&[
                Relation::Equal,
                Relation::NotEqual,
                Relation::Less,
                Relation::LessOrEqual,
                Relation::Greater,
                Relation::GreaterOrEqual,
                Relation::Common,
            ]),
            constant: random.pick(&[near, 0, 5, other]),
        };
    }
    let (of, text) = match random.once_in(3) {
        true => (Text::Comm, b"a comm".to_vec()),
        false => (Text::Value(index), bytes),
    };
    let pattern = match random.below(4) {
        0 => Pattern::Same(text),
        1 => Pattern::Same(text.iter().copied().skip(1).collect()),
        _ => {
            let mut pattern: Vec<u8> = text.into_iter().filter(|byte| *byte != b'[').collect();
            pattern.truncate(40);
            for _ in 0..1 + random.below(3) {
                let at = random.below(pattern.len() as u64 + 1) as usize;
                let end = (at + random.below(4) as usize).min(pattern.len());
                pattern.splice(at..end, [random.pick(b"**?a")]);
            }
            Pattern::Glob(pattern)
        }
    };
    Filter::Text { of, pattern }
}

fn filter(random: &mut Random, taken: &[Taken], depth: u32) -> Filter {
    let several = |random: &mut Random| {
        let count = random.below(4);
        (0..count)
            .map(|_| filter(random, taken, depth - 1))
            .collect()
    };
    match random.below(if depth == 0 { 1 } else { 5 }) {
        1 => Filter::All(several(random)),
        2 => Filter::Any(several(random)),
        3 => Filter::Not(Box::new(filter(random, taken, depth - 1))),
        _ => test(random, taken),
    }
}

struct Probed<'a> {
    cpu: &'a mut Cpu,
    blocks: &'a Blocks,
    environment: Environment,
    registers: Registers,
}

impl Probed<'_> {
    /// The records that a hit leaves, and what its counter grows by. All else must be as without a probe.
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

/// A record's words for these values.
fn encoded(taken: &[Taken]) -> Vec<u64> {
    let mut words = Vec::new();
    for value in taken {
        let Taken::Bytes(bytes) = value else {
            words.push(u64::MAX);
            continue;
        };
        words.push(bytes.len() as u64);
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            words.push(u64::from_le_bytes(word));
        }
    }
    words
}

/// Clears what is behind the last byte of each value: nobody reads it.
fn without_padding(mut words: Vec<u64>) -> Vec<u64> {
    let mut at = 0;
    while at < words.len() {
        let len = words[at];
        at += 1;
        if len == u64::MAX {
            continue;
        }
        let end = at + (len as usize).div_ceil(8);
        if !len.is_multiple_of(8) && end <= words.len() {
            words[end - 1] &= (1 << (len % 8 * 8)) - 1;
        }
        at = end;
    }
    words
}

#[test]
fn a_detour_takes_what_an_interpreter_takes_of_any_memory() {
    const WORLDS: u64 = 40;
    const HITS: u64 = 150;
    let name = "a_detour_takes_what_an_interpreter_takes_of_any_memory";
    proves(&["TR02", "TR04"], name, || {
        let mut random = Random::new(0x7261_6d21);
        let mut cpu = Cpu::new().unwrap();
        let blocks = Blocks::new(1).unwrap();
        let (mut faults, mut all, mut met, mut filtered) = (0, 0, 0, 0);
        for _ in 0..WORLDS {
            let world = World::new(&mut random);
            let context = TaskContext {
                pid: 5,
                tgid: 4,
                comm: *b"a comm\0\0\0\0\0\0\0\0\0\0",
                ..TaskContext::default()
            };
            blocks.describe_task(&context);
            let mut environment = blocks.environment(blocks.gs_base(0));
            environment.pointers = Some(world.pointers());
            for _ in 0..HITS {
                let layout = cpu.layout();
                let numbers = std::array::from_fn(|_| world.pointer(&mut random));
                let registers = Registers {
                    rsp: layout.data + 4096 + 8 * random.below(16),
                    rip: layout.code,
                    rflags: random.bits() & 0x8d5,
                    ..Registers::numbered(numbers)
                };
                let values: Vec<_> = (0..1 + random.below(4))
                    .map(|_| value(&world, &mut random))
                    .collect();
                let bases = Bases {
                    registers: &Registers {
                        rflags: registers.rflags | 0x202,
                        ..registers
                    },
                    entry: None,
                    task: Some(blocks.task(0)),
                    cpu: 0,
                };
                let taken = |value: &Value| {
                    let mut read = |at, into: &mut [u8]| world.read(at, into);
                    take(value, &bases, &mut read).map_or(Taken::Fault, Taken::Bytes)
                };
                let taken: Vec<_> = values.iter().map(taken).collect();
                let filter = random.once_in(2).then(|| filter(&mut random, &taken, 2));
                let meets = filter.as_ref().is_none_or(|filter| {
                    filter.holds(&Subject {
                        values: &taken,
                        context: Some(&context),
                        cpu: 0,
                    })
                });
                all += taken.len();
                faults += taken.iter().filter(|it| **it == Taken::Fault).count();
                filtered += u32::from(filter.is_some());
                met += u32::from(filter.is_some() && meets);
                let counts = filter.is_some() && random.once_in(4);
                let purpose = Purpose {
                    capture: Some(match counts {
                        true => Capture::Count,
                        false => Capture::Event(Fetches::default()),
                    }),
                    values: values.into(),
                    filter: filter.map(Into::into),
                    ..Purpose::default()
                };
                let dead = Dead {
                    registers: 1,
                    flags: random.once_in(2),
                };
                let mut probed = Probed {
                    cpu: &mut cpu,
                    blocks: &blocks,
                    environment,
                    registers,
                };
                let (records, counted) = probed.hit(&purpose, dead);
                let records: Vec<_> = records.into_iter().map(without_padding).collect();
                let expected = match meets && !counts {
                    true => vec![encoded(&taken)],
                    false => Vec::new(),
                };
                assert_eq!(records, expected, "{purpose:x?} {registers:x?}");
                assert_eq!(counted, u32::from(meets && counts), "{purpose:x?}");
            }
        }
        assert!(
            faults > all / 20 && faults < all * 19 / 20,
            "{faults} of {all}"
        );
        assert!(met > 100 && filtered - met > 100, "{met} of {filtered}");
        format!("{all} values, {faults} of them of bad pointers; {met} of {filtered} filters met")
    });
}

#[test]
fn a_record_tells_of_the_task() {
    let mut cpu = Cpu::new().unwrap();
    let blocks = Blocks::new(1).unwrap();
    let context = TaskContext {
        pid: 0x1234,
        tgid: 0x1230,
        comm: *b"somebody's task\0",
        ..TaskContext::default()
    };
    blocks.describe_task(&context);
    let mut probed = Probed {
        environment: blocks.environment(blocks.gs_base(0)),
        registers: Registers {
            rsp: cpu.layout().data + 4096,
            rbx: 77,
            rflags: 0x8d5,
            ..Registers::default()
        },
        cpu: &mut cpu,
        blocks: &blocks,
    };
    let value = Value {
        base: Base::Register(3),
        loads: Vec::new(),
        take: Take::Word,
    };
    let comm = |at: usize| u64::from_le_bytes(context.comm[at..at + 8].try_into().unwrap());
    for values in [vec![], vec![value]] {
        let mut expected = vec![0x1230_0000_1234, comm(0), comm(8), 1 << 31, 0];
        expected.splice(0..0, [0xad7]);
        if !values.is_empty() {
            expected.extend([8, 77]);
        }
        let purpose = Purpose {
            capture: Some(Capture::Event(Fetches::default())),
            values: values.into(),
            context: true,
            ..Purpose::default()
        };
        let (mut records, _) = probed.hit(&purpose, Dead::default());
        // IF is the host's.
        records[0][0] |= 0x200;
        assert_eq!(records, [expected]);
    }
}

#[test]
fn a_stack_has_the_return_addresses_that_ours_stand_in_the_places_of() {
    const TRAMPOLINE: u64 = 0xffff_c900_0012_3000;
    const WORDS: u64 = 100;
    let name = "a_stack_has_the_return_addresses_that_ours_stand_in_the_places_of";
    proves(&["TR07"], name, || {
        let mut random = Random::new(0x7374_6163);
        let mut cpu = Cpu::new().unwrap();
        let blocks = Blocks::new(1).unwrap();
        let world = World::new(&mut random);
        let mut environment = blocks.environment(blocks.gs_base(0));
        environment.pointers = Some(world.pointers());
        environment.following = Some(blocks.following(TRAMPOLINE));
        let page = LOW.start.0 + TABLES * PAGE;
        let stack = DIRECT_MAP + page;
        let mut expected = vec![WORDS * 8];
        let (mut followed, mut unknown) = (0, 0);
        for word in 0..WORDS {
            let slot = stack + word * 8;
            let first = calls::bucket(slot) * calls::WAYS;
            let (there, led_back) = match random.below(6) {
                // What began last at one place has its address there; it may be anywhere in the bucket.
                0 => {
                    let levels = [random.below(2) as u32, 2];
                    let last = random.below(calls::WAYS);
                    let other = (last + 1 + random.below(calls::WAYS - 1)) % calls::WAYS;
                    let origins = levels.map(|_| random.bits());
                    for ((way, level), origin) in [other, last].into_iter().zip(levels).zip(origins)
                    {
                        blocks.set_call(first + way, slot, 5);
                        blocks.set_origin(first + way, level, origin);
                    }
                    followed += 1;
                    (TRAMPOLINE, origins[1])
                }
                // Nobody knows the call: the table has been written over.
                1 => {
                    unknown += 1;
                    (TRAMPOLINE, TRAMPOLINE)
                }
                2 => (TRAMPOLINE + 8, TRAMPOLINE + 8),
                _ => {
                    let any = random.bits();
                    (any, any)
                }
            };
            world.put(page + word * 8, there);
            expected.push(led_back);
        }
        let piece = Value {
            base: Base::Register(3),
            loads: Vec::new(),
            take: Take::Stack {
                at: Load {
                    offset: 0,
                    space: Space::Any,
                },
                most: (WORDS * 8) as u16,
            },
        };
        let purpose = Purpose {
            capture: Some(Capture::Event(Fetches::default())),
            values: vec![piece].into(),
            ..Purpose::default()
        };
        let mut probed = Probed {
            environment,
            registers: Registers {
                rsp: cpu.layout().data + 4096,
                rbx: stack,
                rflags: 0x8d5,
                ..Registers::default()
            },
            cpu: &mut cpu,
            blocks: &blocks,
        };
        let (records, _) = probed.hit(&purpose, Dead::default());
        assert_eq!(records, [expected]);
        assert!(followed > 5 && unknown > 5, "{followed} {unknown}");
        format!("{followed} return addresses put back of {WORDS} words")
    });
}
