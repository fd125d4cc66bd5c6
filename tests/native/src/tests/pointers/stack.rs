//! Stacks with return addresses of ours.

use guest_state::Registers;
use probe_engine::calls::layout as calls;
use probe_engine::detour::{Dead, Purpose};
use probe_engine::fetch::Fetches;
use probe_engine::probe::Capture;
use probe_engine::value::{Base, Load, Space, Take, Value};
use row_report::proves;
use seeded_random::Random;

use super::{PAGE, Probed, TABLES, World};
use crate::cpu::Cpu;
use crate::jump::blocks::Blocks;
use crate::jump::ram::{DIRECT_MAP, LOW};

#[test]
fn a_stack_has_the_return_addresses_that_ours_stand_in_the_places_of() {
    const TRAMPOLINE: u64 = 0xffff_c900_0012_3000;
    const WORDS: usize = 100;
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
        // Lengths of the whole value and of its first piece.
        let len = WORDS as u64 * 8;
        let mut expected = vec![8 + len, len];
        let (mut followed, mut unknown, mut interrupted) = (0, 0, 0);
        // Of several calls with one return address, the one that began last has its address there.
        // It may be anywhere in the bucket.
        let follow = |random: &mut Random, slot| {
            let first = calls::bucket(slot) * calls::WAYS;
            let levels = [random.below(2) as u32, 2];
            let last = random.below(calls::WAYS);
            let other = (last + 1 + random.below(calls::WAYS - 1)) % calls::WAYS;
            let origins = levels.map(|_| random.bits());
            for ((way, level), origin) in [other, last].into_iter().zip(levels).zip(origins) {
                blocks.set_call(first + way, slot, 5);
                blocks.set_origin(first + way, level, origin);
            }
            origins[1]
        };
        let mut there = Vec::new();
        while there.len() < WORDS {
            let slot = stack + there.len() as u64 * 8;
            let any = random.bits();
            let (word, led_back) = match random.below(7) {
                0 => {
                    followed += 1;
                    (TRAMPOLINE, follow(&mut random, slot))
                }
                // The word that the trampoline's first instruction pushes.
                1 => {
                    followed += 1;
                    (TRAMPOLINE + 5, follow(&mut random, slot))
                }
                // The frame of an interrupt, with RSP right above the return address that the frame
                // has overwritten.
                2 if there.len() + 4 <= WORDS => {
                    interrupted += 1;
                    let rsp = stack - 8 * random.below(400);
                    let rip = follow(&mut random, rsp - 8);
                    there.extend([TRAMPOLINE, 0x10, 0x246, rsp]);
                    expected.extend([rip, 0x10, 0x246, rsp]);
                    continue;
                }
                // The call isn't in the table, which has been overwritten.
                3 => {
                    unknown += 1;
                    (TRAMPOLINE, TRAMPOLINE)
                }
                4 => (TRAMPOLINE + 8, TRAMPOLINE + 8),
                _ => (any, any),
            };
            there.push(word);
            expected.push(led_back);
        }
        for (word, at) in there.iter().zip((page..).step_by(8)) {
            world.put(at, *word);
        }
        let piece = Value {
            base: Base::Register(3),
            loads: Vec::new(),
            take: Take::Stack {
                at: Load {
                    offset: 0,
                    space: Space::Any,
                },
                most: len as u16,
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
        let counts = [followed, unknown, interrupted];
        assert!(counts.iter().all(|count| *count > 3), "{counts:?}");
        format!("{followed} return addresses put back of {WORDS} words")
    });
}
