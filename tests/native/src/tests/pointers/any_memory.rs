//! Values and filters of all kinds, with memory that may be mapped or not.

use guest_kernel::context::TaskContext;
use guest_state::Registers;
use probe_engine::condition::Relation;
use probe_engine::detour::{Dead, Purpose};
use probe_engine::fetch::Fetches;
use probe_engine::filter::{Filter, Number, Pattern, Subject, Text};
use probe_engine::probe::Capture;
use probe_engine::value::{Base, Bases, Load, Space, Take, Taken, Value, stack_pieces, take};
use row_report::proves;
use seeded_random::Random;

use super::{PAGE, Probed, TABLES, World};
use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;
use crate::jump::ram::{DIRECT_MAP, LOW};

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

/// A value to take.
pub fn value(world: &World, random: &mut Random) -> Value {
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

/// Returns a comparison that is met now and then.
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
            // A shorter value doesn't have these bits.
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
            let mut pattern = text;
            pattern.truncate(200);
            for _ in 0..1 + random.below(3) {
                let at = random.below(pattern.len() as u64 + 1) as usize;
                let end = (at + random.below(4) as usize).min(pattern.len());
                let change: [&[u8]; _] = [
                    b"*", b"*", b"?", b"a", b"[a-z]", b"[!a]", b"[]!-~]", b"[", b"[!",
                ];
                pattern.splice(at..end, random.pick(&change).iter().copied());
            }
            Pattern::Glob(pattern)
        }
    };
    Filter::Text { of, pattern }
}

/// The task that filters are asked about.
pub(in crate::tests) fn task() -> TaskContext {
    TaskContext {
        pid: 5,
        tgid: 4,
        comm: *b"a comm\0\0\0\0\0\0\0\0\0\0",
        ..TaskContext::default()
    }
}

/// Returns true if a hit of [`task`] with these values meets the filter, or if there is none.
pub(in crate::tests) fn meets(filter: Option<&Filter>, taken: &[Taken]) -> bool {
    filter.is_none_or(|filter| {
        filter.holds(&Subject {
            values: taken,
            context: Some(&task()),
            cpu: 0,
        })
    })
}

/// Returns a filter on these values.
pub(in crate::tests) fn filter(random: &mut Random, taken: &[Taken], depth: u32) -> Filter {
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

/// Returns a record's words for these values.
pub fn encoded(taken: &[Taken]) -> Vec<u64> {
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

/// Clears the padding behind the last byte of each value, which isn't used.
pub fn without_padding(mut words: Vec<u64>) -> Vec<u64> {
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

/// Returns true if a value has a piece of the stack that an interrupt came from.
fn leads_on(value: &Value, taken: &Taken) -> bool {
    match (value.take, taken) {
        (Take::Stack { .. }, Taken::Bytes(bytes)) => !stack_pieces(0, bytes)[1].1.is_empty(),
        _ => false,
    }
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
        let mut interrupted = 0;
        for _ in 0..WORLDS {
            let world = World::new(&mut random);
            blocks.describe_task(&task());
            let mut environment = blocks.environment(blocks.gs_base(0));
            environment.pointers = Some(world.pointers());
            for _ in 0..HITS {
                let layout = cpu.layout();
                let mut numbers = std::array::from_fn(|_| world.pointer(&mut random));
                // A stack for interrupts, to which a register points.
                let page = LOW.start.0 + TABLES * PAGE;
                let word = page + 2048 + 8 * random.below(100);
                world.put(word, world.pointer(&mut random));
                let top = DIRECT_MAP + word;
                let register = random.pick(&[0, 3, 7, 12]);
                numbers[register] = top.wrapping_add(8).wrapping_sub(random.below(300));
                let registers = Registers {
                    rsp: layout.data + 4096 + 8 * random.below(16),
                    rip: layout.code,
                    rflags: random.bits() & 0x8d5,
                    ..Registers::numbered(numbers)
                };
                blocks.set_interrupt_stack(0, top);
                let mut values: Vec<_> = (0..1 + random.below(4))
                    .map(|_| value(&world, &mut random))
                    .collect();
                if random.once_in(4) {
                    values.push(Value {
                        base: Base::Register(register as u8),
                        loads: Vec::new(),
                        take: Take::Stack {
                            at: Load {
                                offset: 0,
                                space: Space::Any,
                            },
                            most: random.pick(&[100, 500]),
                        },
                    });
                }
                let bases = Bases {
                    registers: &Registers {
                        rflags: registers.rflags | 0x202,
                        ..registers
                    },
                    entry: None,
                    task: Some(blocks.task(0)),
                    cpu: 0,
                    interrupt_stack: Some(top),
                };
                let taken = |value: &Value| {
                    let mut read = |at, into: &mut [u8]| world.read(at, into);
                    take(value, &bases, &mut read).map_or(Taken::Fault, Taken::Bytes)
                };
                let taken: Vec<_> = values.iter().map(taken).collect();
                let filter = random.once_in(2).then(|| filter(&mut random, &taken, 2));
                let meets = meets(filter.as_ref(), &taken);
                all += taken.len();
                let stacks = values.iter().zip(&taken);
                interrupted += stacks
                    .filter(|(value, taken)| leads_on(value, taken))
                    .count();
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
        assert!(interrupted > 100, "{interrupted} stacks of interrupts");
        assert!(met > 100 && filtered - met > 100, "{met} of {filtered}");
        format!(
            "{all} values, {faults} of them of bad pointers, {interrupted} of interrupted stacks; {met} of \
             {filtered} filters met"
        )
    });
}
