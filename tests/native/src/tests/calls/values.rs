//! Returns whose records have values from memory.

use guest_state::Registers;
use probe_engine::detour::{Follow, Purpose};
use probe_engine::fetch::Fetches;
use probe_engine::filter::Filter;
use probe_engine::ring::layout::RING_LEN;
use probe_engine::value::{Base, Bases, Taken, Value, take};
use row_report::proves;
use seeded_random::Random;

use super::{BREAKPOINT, FIRST_NUMBER, LIMIT, Probed, SHARED};
use crate::cpu::State;
use crate::jump::single;
use crate::tests::pointers::World;
use crate::tests::pointers::any_memory::{encoded, filter, meets, task, value, without_padding};

/// `xchg %rdi,%rsi; lea 8(%rcx),%rax; ret`
pub(super) const FUNCTION: [u8; 8] = [0x48, 0x87, 0xfe, 0x48, 0x8d, 0x41, 0x08, 0xc3];

/// Returns the registers that the function's caller finds.
pub(super) fn after(registers: &Registers) -> Registers {
    Registers {
        rdi: registers.rsi,
        rsi: registers.rdi,
        rax: registers.rcx.wrapping_add(8),
        ..*registers
    }
}

/// Values to take at a return, of the registers there or at the entry.
pub(super) fn values(world: &World, random: &mut Random) -> Vec<Value> {
    let count = 1 + random.below(4);
    let value = |random: &mut Random| {
        let value = value(world, random);
        match value.base {
            Base::Register(number) if random.once_in(2) => Value {
                base: Base::EntryRegister(number),
                ..value
            },
            _ => value,
        }
    };
    (0..count).map(|_| value(random)).collect()
}

/// The function, called in a world of memory.
struct Tried<'a> {
    probed: &'a mut Probed,
    world: &'a World,
}

impl Tried<'_> {
    fn probe(&mut self, values: &[Value], filter: Option<&Filter>, lossless: bool) {
        let purpose = Purpose {
            follow: Some(Follow {
                records: true,
                limit: LIMIT,
                lossless,
            }),
            at_return: values.into(),
            filter_at_return: filter.cloned().map(Into::into),
            ..Purpose::default()
        };
        self.probed.probe((0, &FUNCTION), FIRST_NUMBER, &purpose);
    }

    /// Returns what the host takes from the same memory.
    fn taken(&self, values: &[Value]) -> Vec<Taken> {
        let flags = |registers| Registers {
            rflags: self.probed.registers.rflags | 0x202,
            ..registers
        };
        let entry = flags(Registers {
            rsp: self.probed.slot(),
            ..self.probed.registers
        });
        let registers = flags(Registers {
            rip: self.probed.caller(),
            ..after(&self.probed.registers)
        });
        let bases = Bases {
            registers: &registers,
            entry: Some(&entry),
            task: Some(self.probed.blocks.task(0)),
            cpu: 0,
            interrupt_stack: None,
        };
        let take = |value: &Value| {
            let mut read = |at, into: &mut [u8]| self.world.read(at, into);
            take(value, &bases, &mut read).map_or(Taken::Fault, Taken::Bytes)
        };
        values.iter().map(take).collect()
    }

    /// Returns the values of the returns in the ring. Everything else must be as without values.
    fn returned(&self) -> Vec<Vec<u64>> {
        let exit = after(&self.probed.registers);
        let mut expected = single::recorded(Fetches::ALL, &exit);
        expected.extend(self.probed.of_call());
        let told = self.probed.blocks.drain(0).into_iter().map(|mut record| {
            assert!(record.returns && record.detour == FIRST_NUMBER);
            let entry_tsc = record.registers.remove(18);
            assert!(entry_tsc > 0 && entry_tsc < record.tsc);
            let values = record.registers.split_off(expected.len());
            assert_eq!(record.registers, expected);
            without_padding(values)
        });
        told.collect()
    }

    fn check(&self, state: &State) {
        let expected = Registers {
            rip: self.probed.caller(),
            ..after(&self.probed.registers)
        };
        assert_eq!((state.registers, state.fault), (expected, None));
        assert_eq!(
            (
                self.probed.tally(FIRST_NUMBER).0,
                self.probed.blocks.calls()
            ),
            (0, 0)
        );
    }
}

#[test]
fn a_return_takes_what_an_interpreter_takes_of_any_memory() {
    const WORLDS: u64 = 30;
    const CALLS: u64 = 60;
    let name = "a_return_takes_what_an_interpreter_takes_of_any_memory";
    proves(&["TR02", "TR04", "JP11"], name, || {
        let mut random = Random::new(0x7265_7475);
        let mut probed = Probed::unprobed();
        let (mut all, mut faults, mut met, mut filtered) = (0, 0, 0, 0);
        probed.blocks.describe_task(&task());
        for _ in 0..WORLDS {
            let world = World::new(&mut random);
            probed.environment.pointers = Some(world.pointers());
            for _ in 0..CALLS {
                probed.point_into(&world, &mut random);
                let values = values(&world, &mut random);
                let mut tried = Tried {
                    probed: &mut probed,
                    world: &world,
                };
                let taken = tried.taken(&values);
                let filter = random.once_in(2).then(|| filter(&mut random, &taken, 2));
                let meets = meets(filter.as_ref(), &taken);
                tried.probe(&values, filter.as_ref(), random.once_in(2));
                let state = tried.probed.begin(0);
                tried.check(&state);
                let expected = match meets {
                    true => vec![encoded(&taken)],
                    false => Vec::new(),
                };
                assert_eq!(tried.returned(), expected, "{values:x?} {filter:x?}");
                filtered += u32::from(filter.is_some());
                met += u32::from(filter.is_some() && meets);
                all += taken.len();
                faults += taken.iter().filter(|it| **it == Taken::Fault).count();
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
fn a_return_with_values_waits_for_room_or_counts_as_missed() {
    let name = "a_return_with_values_waits_for_room_or_counts_as_missed";
    proves(&["JP07", "JP11"], name, || {
        let mut random = Random::new(1);
        let world = World::new(&mut random);
        for (lossless, gives_up) in [(false, false), (true, false), (true, true)] {
            let mut probed = Probed::unprobed();
            probed.environment.pointers = Some(world.pointers());
            probed.registers.rdi = world.pointer(&mut random);
            let values = values(&world, &mut random);
            let mut tried = Tried {
                probed: &mut probed,
                world: &world,
            };
            tried.probe(&values, None, lossless);
            let taken = tried.taken(&values);
            tried.probed.blocks.set_position(0, RING_LEN, 0);
            let mut state = tried.probed.begin(0);
            if lossless {
                assert_eq!(state.fault.map(|fault| fault.vector), Some(BREAKPOINT));
                let full = tried.probed.shared.full;
                let start = tried.probed.text.address(SHARED);
                let rip = start + u64::from(full.trap) + 1;
                assert_eq!(
                    (state.registers.rip, state.registers.rax as u32),
                    (rip, FIRST_NUMBER)
                );
                tried.probed.blocks.discard(0);
                let to = match gives_up {
                    true => start + u64::from(full.gives_up),
                    false => rip,
                };
                let case = tried.probed.case(0xe9, to, state.registers, &state.data);
                state = tried.probed.cpu.execute(&case).unwrap();
            }
            let missed = !lossless || gives_up;
            tried.check(&state);
            assert_eq!(tried.probed.tally(FIRST_NUMBER).1, u32::from(missed));
            let expected = match missed {
                true => vec![],
                false => vec![encoded(&taken)],
            };
            assert_eq!(tried.returned(), expected);
        }
        String::new()
    });
}
