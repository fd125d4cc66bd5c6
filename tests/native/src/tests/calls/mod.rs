//! Calls that detours follow, at the limits of their table and of the rings.

mod values;
mod way_out;

use guest_state::{GuestVirtAddr, Registers};
use probe_engine::calls::layout::{NUMBER, ORPHAN, TRAMPOLINE_LEN, WAYS, bucket};
use probe_engine::detour::{
    Dead, Detour, Environment, Follow, JUMP_LEN, Purpose, Tag, Trampoline, generate, trampoline,
};
use probe_engine::fetch::Fetches;
use probe_engine::ring::layout::RING_LEN;
use row_report::proves;
use seeded_random::Random;

use crate::case::Case;
use crate::cpu::{Cpu, State};
use crate::jump::blocks::Blocks;
use crate::jump::text::Text;
use crate::jump::{region, single};
use crate::tests::pointers::World;

/// `mov $7,%eax; ret`
const FUNCTION: [u8; 6] = [0xb8, 7, 0, 0, 0, 0xc3];
/// `jmp` to the function 256 bytes before.
const JUMPER: [u8; 5] = [0xe9, 0xfb, 0xfe, 0xff, 0xff];
/// Offsets in the text.
const SECOND: usize = 256;
const SHARED: usize = 4096;
const DETOURS: usize = 8192;
/// The detours' numbers.
const FIRST_NUMBER: u32 = 3;
const SECOND_NUMBER: u32 = 4;
const LIMIT: u32 = 5;
/// The exception of an int3.
const BREAKPOINT: u64 = 3;

/// A function, and one that jumps to it, both with return probes.
struct Probed {
    cpu: Cpu,
    blocks: Blocks,
    text: Text,
    environment: Environment,
    shared: Trampoline,
    registers: Registers,
}

impl Probed {
    fn new(records: bool, lossless: bool) -> Self {
        Self::with(records, lossless, JUMPER)
    }

    /// As [`new`](Self::new), with calls that are only counted, and with the second function
    /// jumping to `place`.
    fn jumping_to(place: usize) -> Self {
        let by = place as i32 - (SECOND + JUMPER.len()) as i32;
        let mut jumper = JUMPER;
        jumper[1..].copy_from_slice(&by.to_le_bytes());
        Self::with(false, false, jumper)
    }

    fn with(records: bool, lossless: bool, jumper: [u8; JUMPER.len()]) -> Self {
        let mut probed = Self::unprobed();
        let purpose = Purpose {
            follow: Some(Follow {
                records,
                limit: LIMIT,
                lossless,
            }),
            ..Purpose::default()
        };
        probed.probe((0, &FUNCTION), FIRST_NUMBER, &purpose);
        probed.probe((SECOND, &jumper), SECOND_NUMBER, &purpose);
        probed
    }

    /// Makes it without any function.
    fn unprobed() -> Self {
        let cpu = Cpu::new().unwrap();
        let blocks = Blocks::new(1).unwrap();
        let mut text = Text::new(4 * SHARED).unwrap();
        let environment = Environment {
            following: Some(blocks.following(text.address(SHARED))),
            ..blocks.environment(blocks.gs_base(0))
        };
        let shared = trampoline(&environment).unwrap();
        assert!(shared.code.len() <= TRAMPOLINE_LEN as usize);
        text.put(SHARED, &shared.code);
        let values = std::array::from_fn(|number| 0x1111_1111_1111 * number as u64);
        let registers = Registers {
            rsp: cpu.layout().data + 4096,
            rflags: 0xad7,
            ..Registers::numbered(values)
        };
        Self {
            cpu,
            blocks,
            text,
            environment,
            shared,
            registers,
        }
    }

    /// Makes most registers point into a world of memory, or to unmapped addresses.
    fn point_into(&mut self, world: &World, random: &mut Random) {
        let numbers = std::array::from_fn(|_| world.pointer(random));
        self.registers = Registers {
            rsp: self.registers.rsp,
            rflags: self.registers.rflags,
            ..Registers::numbered(numbers)
        };
    }

    /// Puts a function there, with a jump at its entry. Returns the detour.
    fn probe(&mut self, (at, code): (usize, &[u8]), number: u32, purpose: &Purpose) -> Detour {
        let region = region::at(self.text.address(at), code).unwrap();
        let (tag, dead) = (Tag { number, cell: 0 }, Dead::default());
        let place = DETOURS + at * 8;
        let to = GuestVirtAddr(self.text.address(place));
        let detour = generate(&self.environment, &region, dead, purpose, tag, to).unwrap();
        self.text.put(place, &detour.code);
        self.text.put(at, code);
        self.text.put(at, &region::patched(&region, &detour));
        detour
    }

    /// The address of the function's return address.
    fn slot(&self) -> u64 {
        self.registers.rsp - 8
    }

    /// Calls the function there. Checks its result, and that nothing else has changed.
    fn call(&mut self, at: usize) {
        let state = self.begin(at);
        self.check(&state);
    }

    fn begin(&mut self, at: usize) -> State {
        let case = self.case(0xe8, self.text.address(at), self.registers, &[]);
        self.cpu.execute(&case).unwrap()
    }

    fn check(&self, state: &State) {
        let expected = Registers {
            rax: 7,
            rip: self.caller(),
            ..self.registers
        };
        assert_eq!((state.registers, state.fault), (expected, None));
    }

    /// Makes a case of one instruction with this opcode that leads to `to`.
    fn case(&self, opcode: u8, to: u64, registers: Registers, data: &[u8]) -> Case {
        let layout = self.cpu.layout();
        let by = to.wrapping_sub(layout.code + JUMP_LEN as u64) as i32;
        let mut code = vec![opcode];
        code.extend(by.to_le_bytes());
        let registers = Registers {
            rip: layout.code,
            ..registers
        };
        let mut case = Case::exactly(&code, registers, data, layout).unwrap();
        case.gs_base = self.blocks.gs_base(0);
        case
    }

    /// Returns the words that the record of a return has, for a call that began with these
    /// registers.
    fn expected(&self) -> Vec<u64> {
        let exit = Registers {
            rax: 7,
            ..self.registers
        };
        let mut words = single::recorded(Fetches::ALL, &exit);
        words.extend(self.of_call());
        words
    }

    /// Returns the words about the call, without the time of its beginning.
    fn of_call(&self) -> Vec<u64> {
        let entry = Registers {
            rsp: self.slot(),
            ..self.registers
        };
        let mut words = vec![self.caller()];
        words.extend(single::recorded(Fetches::ALL, &entry));
        words.extend(self.blocks.context_words(0));
        words
    }

    /// The address to which the call returns.
    fn caller(&self) -> u64 {
        self.cpu.layout().code + JUMP_LEN as u64
    }

    /// Returns the detours of the returns in the ring. Each record must have the expected words.
    fn returned(&self) -> Vec<u32> {
        let expected = self.expected();
        let told = self.blocks.drain(0).into_iter().map(|mut record| {
            assert!(record.returns);
            let entry_tsc = record.registers.remove(18);
            assert!(entry_tsc > 0 && entry_tsc < record.tsc);
            assert_eq!(record.registers, expected);
            record.detour
        });
        told.collect()
    }

    /// Calls that are active, missed, and counted.
    fn tally(&self, number: u32) -> (u32, u32, u32) {
        let tally = self.blocks.tally(number);
        (tally.active, tally.missed, tally.counted)
    }
}

#[test]
fn a_return_s_record_tells_all_of_the_call_and_changes_nothing() {
    let name = "a_return_s_record_tells_all_of_the_call_and_changes_nothing";
    proves(&["JP11"], name, || {
        let mut probed = Probed::new(true, false);
        for _ in 0..3 {
            probed.call(0);
        }
        assert_eq!(probed.returned(), [FIRST_NUMBER; 3]);
        assert_eq!(
            (probed.tally(FIRST_NUMBER), probed.blocks.calls()),
            ((0, 0, 0), 0)
        );
        String::new()
    });
}

#[test]
fn functions_that_jump_into_each_other_return_one_after_the_other_to_the_one_caller() {
    let mut probed = Probed::new(true, false);
    probed.call(SECOND);
    assert_eq!(probed.returned(), [FIRST_NUMBER, SECOND_NUMBER]);
    let mut probed = Probed::new(false, false);
    probed.call(SECOND);
    assert_eq!(probed.tally(FIRST_NUMBER), (0, 0, 1));
    assert_eq!(probed.tally(SECOND_NUMBER), (0, 0, 1));
    assert_eq!(probed.blocks.calls(), 0);
}

#[test]
fn calls_beyond_the_limit_are_missed() {
    let mut probed = Probed::new(false, false);
    for (active, followed) in [(LIMIT - 1, 1), (LIMIT, 0), (LIMIT + 1, 0)] {
        probed.blocks.clear_calls(FIRST_NUMBER);
        probed.blocks.set_active(FIRST_NUMBER, active);
        probed.call(0);
        assert_eq!(probed.tally(FIRST_NUMBER), (active, 1 - followed, followed));
    }
}

#[test]
fn a_call_whose_task_has_ended_makes_room_and_is_counted_as_one_that_never_returns() {
    // An ended call that no probe follows any more isn't counted.
    for (word, followed) in [(!NUMBER & !ORPHAN, WAYS as u32), (!NUMBER, 0)] {
        let mut probed = Probed::new(false, false);
        let slot = probed.slot();
        for index in 0..WAYS {
            let place = bucket(slot) * WAYS + index;
            probed.blocks.set_call(place, slot, SECOND_NUMBER | word);
        }
        probed.blocks.set_active(SECOND_NUMBER, followed);
        probed.call(0);
        assert_eq!(probed.tally(SECOND_NUMBER), (0, 0, 0));
        assert_eq!(probed.blocks.tally(SECOND_NUMBER).ended, followed);
        assert_eq!(
            (probed.tally(FIRST_NUMBER), probed.blocks.calls()),
            ((0, 0, 1), 0)
        );
        assert_eq!(probed.blocks.tally(FIRST_NUMBER).ended, 0);
    }
}

#[test]
fn a_call_without_room_in_the_table_is_missed() {
    let mut probed = Probed::new(false, false);
    let slot = probed.slot();
    for index in 0..WAYS {
        let other = 8 * (index + 1);
        probed
            .blocks
            .set_call(bucket(slot) * WAYS + index, other, SECOND_NUMBER);
    }
    probed.call(0);
    assert_eq!(probed.tally(FIRST_NUMBER), (0, 1, 0));
    assert_eq!(probed.blocks.calls() as u64, WAYS);
}

#[test]
fn a_call_that_a_breakpoint_follows_already_is_missed() {
    let mut probed = Probed::new(false, false);
    // `push` of the address of the breakpoints' trampoline; jmp to the function.
    let to = probed.text.address(SHARED) + TRAMPOLINE_LEN;
    let caller = SECOND * 2;
    let mut code = vec![0x68];
    code.extend((to as u32).to_le_bytes());
    code.extend([0xe9]);
    code.extend((-(caller as i32 + 10)).to_le_bytes());
    probed.text.put(caller, &code);
    probed.text.put(SHARED + TRAMPOLINE_LEN as usize, &[0xcc]);
    let state = probed.begin(caller);
    assert_eq!(state.fault.map(|fault| fault.vector), Some(BREAKPOINT));
    assert_eq!(state.registers.rip, to + 1);
    assert_eq!(probed.tally(FIRST_NUMBER), (0, 1, 0));
}

#[test]
fn a_return_with_the_ring_full_is_counted_as_missed() {
    let name = "a_return_with_the_ring_full_is_counted_as_missed";
    proves(&["JP07", "JP11"], name, || {
        let mut probed = Probed::new(true, false);
        probed.blocks.set_position(0, RING_LEN, 0);
        probed.call(0);
        assert_eq!(
            (probed.tally(FIRST_NUMBER), probed.blocks.calls()),
            ((0, 1, 0), 0)
        );
        String::new()
    });
}

#[test]
fn a_lossless_return_traps_and_tries_again_or_gives_up() {
    let name = "a_lossless_return_traps_and_tries_again_or_gives_up";
    proves(&["JP07", "JP11"], name, || {
        for gives_up in [false, true] {
            let mut probed = Probed::new(true, true);
            probed.blocks.set_position(0, RING_LEN, 0);
            let state = probed.begin(0);
            assert_eq!(state.fault.map(|fault| fault.vector), Some(BREAKPOINT));
            let full = probed.shared.full;
            let start = probed.text.address(SHARED);
            let rip = start + u64::from(full.trap) + 1;
            assert_eq!(
                (state.registers.rip, state.registers.rax as u32),
                (rip, FIRST_NUMBER)
            );
            probed.blocks.discard(0);
            let to = if gives_up {
                start + u64::from(full.gives_up)
            } else {
                rip
            };
            let case = probed.case(0xe9, to, state.registers, &state.data);
            let state = probed.cpu.execute(&case).unwrap();
            assert_eq!(
                (state.registers.rax, state.registers.rsp),
                (7, probed.registers.rsp)
            );
            let returned = if gives_up { vec![] } else { vec![FIRST_NUMBER] };
            assert_eq!(probed.returned(), returned);
            let missed = gives_up.into();
            assert_eq!(
                (probed.tally(FIRST_NUMBER), probed.blocks.calls()),
                ((0, missed, 0), 0)
            );
        }
        String::new()
    });
}

#[test]
fn at_the_places_where_a_call_is_told_of_it_is_and_it_is_in_the_table_yet() {
    // Recorded; missed as the ring is full; and both before and after the call is removed from the
    // active ones.
    for (place, records, full) in [
        (0, true, false),
        (1, true, true),
        (2, true, false),
        (2, true, true),
        (2, false, false),
        (3, true, false),
        (3, true, true),
        (3, false, false),
    ] {
        let mut probed = Probed::new(records, false);
        if full {
            probed.blocks.set_position(0, RING_LEN, 0);
        }
        let at = SHARED + probed.shared.told[place] as usize;
        probed.text.put(at, &[0xcc]);
        let state = probed.begin(0);
        assert_eq!(state.fault.map(|fault| fault.vector), Some(BREAKPOINT));
        assert_eq!(state.registers.rip, probed.text.address(at) + 1);
        assert_eq!(state.registers.rsp, probed.slot() - probed.shared.depth);
        let active = u32::from(place != 3);
        let missed = u32::from(full);
        let counted = u32::from(!records);
        assert_eq!(probed.tally(FIRST_NUMBER), (active, missed, counted));
        assert_eq!(probed.blocks.calls_at(probed.slot()).len(), 1);
        if !full {
            let returned = if records { vec![FIRST_NUMBER] } else { vec![] };
            assert_eq!(probed.returned(), returned);
        }
    }
}

/// `xchg [rsp],r15; jmp` to the function 512 bytes before: a tool of the guest's takes the return
/// address too.
const TOOL: [u8; 9] = [0x4c, 0x87, 0x3c, 0x24, 0xe9, 0xf7, 0xfd, 0xff, 0xff];
const TOOL_AT: usize = 2 * SECOND;
/// `push r15; mov $...,%r15; ret`: the tool restores the return address, and R15.
const GIVES_BACK: [u8; 5] = [0x41, 0x57, 0x49, 0xc7, 0xc7];
const GIVES_BACK_AT: usize = TOOL_AT + 64;

#[test]
fn a_return_address_that_the_guest_s_tool_puts_between_two_calls_returns_between_them() {
    let name = "a_return_address_that_the_guest_s_tool_puts_between_two_calls_returns_between_them";
    proves(&["JP11", "KP22"], name, || {
        let mut probed = Probed::jumping_to(TOOL_AT);
        let gives_back = probed.text.address(GIVES_BACK_AT);
        let mut code = GIVES_BACK.to_vec();
        code.extend((gives_back as u32).to_le_bytes());
        code.push(0xc3);
        probed.text.put(GIVES_BACK_AT, &code);
        probed.text.put(TOOL_AT, &TOOL);
        probed.registers.r15 = gives_back;
        for times in 1..=3 {
            probed.call(SECOND);
            assert_eq!(probed.tally(FIRST_NUMBER), (0, 0, times));
            assert_eq!(probed.tally(SECOND_NUMBER), (0, 0, times));
            assert_eq!(probed.blocks.calls(), 0);
        }
        String::new()
    });
}

#[test]
fn a_call_above_one_of_the_same_task_returns_and_leaves_that() {
    let mut probed = Probed::new(false, false);
    let slot = probed.slot();
    let place = bucket(slot) * WAYS + 3;
    probed.blocks.set_call(place, slot, SECOND_NUMBER);
    probed.blocks.set_task(place, 0);
    probed.blocks.set_active(SECOND_NUMBER, 1);
    probed.call(0);
    assert_eq!(probed.tally(FIRST_NUMBER), (0, 0, 1));
    assert_eq!(probed.tally(SECOND_NUMBER), (1, 0, 0));
    assert_eq!(probed.blocks.calls_at(slot), [place]);
}

#[test]
fn a_call_that_no_probe_follows_any_more_is_led_on_and_counts_nowhere() {
    for records in [false, true] {
        let mut probed = Probed::new(records, false);
        let end = FUNCTION.len() - 1;
        probed.text.put(end, &[0xcc]);
        let state = probed.begin(0);
        assert_eq!(state.fault.map(|fault| fault.vector), Some(BREAKPOINT));
        assert_eq!(probed.tally(FIRST_NUMBER), (1, 0, 0));
        let calls = probed.blocks.calls_at(probed.slot());
        assert_eq!(calls.len(), 1);
        probed.blocks.orphan(calls[0], FIRST_NUMBER);
        probed.text.put(end, &FUNCTION[end..]);
        let rest = probed.text.address(end);
        let case = probed.case(0xe9, rest, state.registers, &state.data);
        let state = probed.cpu.execute(&case).unwrap();
        assert_eq!(
            (state.registers.rax, state.registers.rsp, state.fault),
            (7, probed.registers.rsp, None)
        );
        assert_eq!(probed.tally(FIRST_NUMBER), (0, 0, 0));
        assert_eq!((probed.blocks.calls(), probed.returned()), (0, vec![]));
    }
}
