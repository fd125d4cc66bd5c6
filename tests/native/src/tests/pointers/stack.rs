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
        // Of the whole value and of its first piece.
        let mut expected = vec![8 + WORDS * 8, WORDS * 8];
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
