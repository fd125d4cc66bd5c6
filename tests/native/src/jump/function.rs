//! Whole functions with jumps at many places, compared with the functions as they are.

use std::collections::BTreeSet;

use guest_state::{GuestVirtAddr, Registers};
use iced_x86::{Decoder, DecoderOptions, OpKind};
use probe_engine::calls::layout::{TRAMPOLINE_LEN, TRAMPOLINES};
use probe_engine::detour::{
    Environment, Follow, JUMP_LEN, Purpose, Region, Tag, generate, live, trampoline,
};
use probe_engine::fetch::Fetches;
use probe_engine::probe::Capture;
use seeded_random::Random;

use super::blocks::{Blocks, Record};
use super::image::{Function, Image};
use super::{draw, region, single};
use crate::case::Case;
use crate::cpu::{Cpu, DATA_LEN, State};

/// Offset in the data of the stack, and of the memory that functions may use.
const STACK: usize = DATA_LEN / 2;
/// Bytes that an argument may point to.
const ZONE: usize = 512;

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Characters that end with a zero.
    Text,
    /// Any bytes.
    Bytes,
    /// A number of bytes.
    Len,
    /// A small number.
    Small,
    /// Any number.
    Number,
}

/// The number of the entry's probe, which leaves a full record, and follows calls.
const ENTRY: u32 = 1;
/// How many calls of the function are followed at a time.
const LIMIT: u32 = 10;

/// The counts of a function's comparison.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tried {
    /// Jumps in the function at the same time.
    pub jumps: usize,
    /// Calls that returned.
    pub calls: usize,
    /// Calls that faulted, with and without jumps.
    pub faults: usize,
    /// Records of all of them.
    pub records: usize,
    /// Returns of the function and, if it calls itself, of those calls, by their records or counts.
    pub returns: usize,
}

/// Draws jumps for a function, and calls it `calls` times with and without them.
///
/// # Errors
/// What differs.
pub fn compare(
    (cpu, blocks): (&mut Cpu, &Blocks),
    image: &mut Image,
    function: &Function,
    (arguments, returned): (&[Argument], u64),
    random: &mut Random,
    calls: usize,
) -> Result<Tried, String> {
    let follow = Follow {
        records: !random.once_in(3),
        limit: LIMIT,
        lossless: random.once_in(2),
    };
    let jumps = jumps(image, blocks, function, follow, random);
    let mut tried = Tried {
        jumps: jumps.len(),
        ..Tried::default()
    };
    for _ in 0..calls {
        let case = case(cpu, blocks, image, function, arguments, random)?;
        let mut states = Vec::new();
        for probed in [false, true] {
            for (at, region, patched) in &jumps {
                image
                    .text
                    .put(*at, if probed { patched } else { &region.bytes });
            }
            states.push(cpu.execute(&case).map_err(|error| error.to_string())?);
        }
        for (at, region, _) in &jumps {
            image.text.put(*at, &region.bytes);
        }
        let records = blocks.drain(0);
        blocks.discard(0);
        let tally = blocks.tally(ENTRY);
        let left = blocks.calls();
        blocks.clear_calls(ENTRY);
        tried.records += records.len();
        let expected = single::recorded(
            Fetches::ALL,
            &Registers {
                rsp: case.registers.rsp - 8,
                ..case.registers
            },
        );
        let has_entry = jumps.first().is_some_and(|(at, ..)| *at == function.at);
        let of_entry = |returns| {
            let wanted =
                move |record: &&Record| record.detour == ENTRY && record.returns == returns;
            records.iter().filter(wanted)
        };
        let entry = of_entry(false).next();
        if has_entry && entry.map(|record| &record.registers) != Some(&expected) {
            return Err(format!(
                "{}: the entry's record is {entry:x?}, not {expected:x?}",
                function.name
            ));
        }
        let [alone, probed] = [0, 1].map(|index| visible(&states[index], returned));
        if alone != probed {
            return Err(format!(
                "{} of {:x?}\nalone  {:x?} {:?}\nprobed {:x?} {:?}\ndata {}",
                function.name,
                case.registers,
                alone.registers,
                alone.fault,
                probed.registers,
                probed.fault,
                alone.data == probed.data
            ));
        }
        if alone.fault.is_some() {
            tried.faults += 1;
            continue;
        }
        tried.calls += 1;
        if !has_entry {
            continue;
        }
        let returned = match follow.records {
            true => of_entry(true).count(),
            false => tally.counted as usize,
        };
        tried.returns += returned;
        let ended = returned + tally.missed as usize;
        if (ended, tally.active, left) != (of_entry(false).count(), 0, 0) {
            return Err(format!(
                "{}: {tally:?}, {returned} returned, {left} left",
                function.name
            ));
        }
        let mut told = single::recorded(Fetches::ALL, &states[1].registers);
        told.push(case.registers.rip + JUMP_LEN as u64);
        let last = of_entry(true).next_back().map(|record| {
            let mut words = record.registers.clone();
            let entry_tsc = words.remove(told.len());
            (words, entry_tsc <= record.tsc && entry_tsc > 0)
        });
        told.extend(&expected);
        told.extend(blocks.context_words(0));
        if last.is_some_and(|last| last != (told.clone(), true)) {
            return Err(format!(
                "{}: the return's record isn't {told:x?}",
                function.name
            ));
        }
    }
    Ok(tried)
}

/// Returns what a caller may use of the state: of RAX the bits that are `returned`.
fn visible(state: &State, returned: u64) -> State {
    const ARITHMETIC: u64 = 0x8d5;
    let mut state = state.clone();
    state.data[..STACK].fill(0);
    let registers = &mut state.registers;
    (registers.r10, registers.r11) = (0, 0);
    registers.rflags &= !ARITHMETIC;
    registers.rax &= returned;
    if state.fault.is_some() {
        // Inside the function, some registers are dead, and copies run at other addresses.
        state.registers = Registers::default();
    }
    state
}

type Jump = (usize, Region, Vec<u8>);

/// Puts jumps into a function. None of them overwrites bytes that a branch leads to or that another one overwrites.
fn jumps(
    image: &mut Image,
    blocks: &Blocks,
    function: &Function,
    follow: Follow,
    random: &mut Random,
) -> Vec<Jump> {
    let start = image.text.address(function.at);
    let text = image.bytes[function.at..function.at + function.len].to_vec();
    let decoder = || Decoder::with_ip(64, &text, start, DecoderOptions::NONE);
    let targets: BTreeSet<u64> = decoder()
        .into_iter()
        .filter(|insn| insn.op0_kind() == OpKind::NearBranch64)
        .map(|insn| insn.near_branch64())
        .collect();
    let room = image.room();
    let environment = Environment {
        following: Some(blocks.following(image.text.address(room))),
        ..blocks.environment(blocks.gs_base(0))
    };
    if let Ok(shared) = trampoline(&environment) {
        assert!(shared.code.len() <= TRAMPOLINE_LEN as usize);
        image.text.put(room, &shared.code);
    }
    let mut jumps: Vec<Jump> = Vec::new();
    let (mut free, mut room) = (start, room + TRAMPOLINES as usize);
    for insn in &mut decoder() {
        let at = (insn.ip() - start) as usize;
        let is_entry = at == 0;
        // Jumps behind the entry are left out now and then, so that they begin at different instructions.
        if insn.ip() < free || !is_entry && random.once_in(4) {
            continue;
        }
        let Some(region) = region::at(insn.ip(), &text[at..]) else {
            continue;
        };
        let end = insn.ip() + region.bytes.len() as u64;
        if targets.range(insn.ip() + 1..end).next().is_some() {
            continue;
        }
        let purpose = Purpose {
            capture: Some(if is_entry {
                Capture::FULL
            } else {
                draw::capture(random)
            }),
            follow: is_entry.then_some(follow),
            ..Purpose::default()
        };
        let tag = Tag {
            number: if is_entry { ENTRY } else { 2 },
            cell: 0,
        };
        let dead = live::dead(&region.bytes[..region.end.into()], region.start);
        let place = GuestVirtAddr(image.text.address(room));
        let Ok(detour) = generate(&environment, &region, dead, &purpose, tag, place) else {
            continue;
        };
        debug_assert!(region.bytes.len() >= JUMP_LEN);
        image.text.put(room, &detour.code);
        room += detour.code.len();
        free = end;
        let patched = region::patched(&region, &detour);
        jumps.push((function.at + at, region, patched));
    }
    jumps
}

/// Makes a call with random arguments.
fn case(
    cpu: &Cpu,
    blocks: &Blocks,
    image: &Image,
    function: &Function,
    arguments: &[Argument],
    random: &mut Random,
) -> Result<Case, String> {
    let layout = cpu.layout();
    let mut data = vec![0; DATA_LEN];
    random.fill(&mut data);
    let mut values = [0; 6];
    for (index, (value, argument)) in values.iter_mut().zip(arguments).enumerate() {
        let zone = STACK + ZONE + index * ZONE;
        *value = match argument {
            Argument::Text => {
                let len = random.below(40) as usize;
                for byte in &mut data[zone..zone + len] {
                    *byte = random.pick(b"aab0123456789fxF-+ ,.*?[]:\t");
                }
                data[zone + len] = 0;
                layout.data + zone as u64
            }
            Argument::Bytes => layout.data + zone as u64,
            Argument::Len => random.below(ZONE as u64 / 4),
            Argument::Small => random.below(20),
            Argument::Number => random.value(),
        };
    }
    let [rdi, rsi, rdx, rcx, r8, r9] = values;
    let registers = Registers {
        rdi,
        rsi,
        rdx,
        rcx,
        r8,
        r9,
        rax: random.bits(),
        rbx: random.bits(),
        rbp: random.bits(),
        r10: random.bits(),
        r11: random.bits(),
        r12: random.bits(),
        r13: random.bits(),
        r14: random.bits(),
        r15: random.bits(),
        rsp: layout.data + STACK as u64,
        rip: layout.code,
        // Not DF: it is clear in all C code (System V ABI, 3.2.1).
        rflags: random.bits() & 0x8d5,
    };
    let target = image.text.address(function.at);
    let by = target.wrapping_sub(layout.code + JUMP_LEN as u64) as i32;
    // call
    let mut code = vec![0xe8];
    code.extend(by.to_le_bytes());
    let mut case = Case::exactly(&code, registers, &data, layout)?;
    case.gs_base = blocks.gs_base(0);
    Ok(case)
}
