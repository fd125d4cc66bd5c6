//! One instruction with a jump on it, compared with the instruction alone.

use std::fmt;

use guest_state::{GuestVirtAddr, Registers};
use iced_x86::{FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory};
use probe_engine::condition::Context;
use probe_engine::detour::{self, Dead, Detour, DetourError, JUMP_LEN, Purpose, Tag, live};
use probe_engine::fetch::{Fetch, Fetches};
use probe_engine::probe::Capture;

use super::blocks::{Blocks, Record};
use super::region;
use crate::case::Case;
use crate::cpu::{Cpu, DATA_LEN, State};
use crate::registers::{field, get, in_encoding_order};

/// The most bytes below RSP that a detour may change.
pub const BELOW: usize = 64;

/// Bytes of `push imm32`.
const PUSH_LEN: u64 = 5;

/// The result of a comparison that agrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreed {
    /// To the end, with the same result.
    Done,
    /// The same fault.
    Faulted,
    /// The instruction's result depends on bytes below RSP.
    NotComparable,
}

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    /// They disagree.
    #[error("{0}")]
    Result(Box<Difference>),
    /// The system doesn't let the case be executed.
    #[error("cannot execute code here: {0}")]
    System(#[from] std::io::Error),
}

/// A case with what went wrong.
#[derive(Debug)]
pub struct Difference {
    what: String,
    case: Case,
    probe: Probe,
    dead: Dead,
    detour: Detour,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        let name = crate::compare::text(&self.case.insn);
        writeln!(f, "`{name}` ({:02x?})", self.case.code)?;
        writeln!(f, "{:?} {:?}", self.probe, self.dead)?;
        writeln!(f, "before {:x?}", self.case.registers)?;
        write!(f, "detour {:02x?} at {}", self.detour.code, self.detour.at)
    }
}

/// The probe of a case.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Its purpose.
    pub purpose: Purpose,
    /// The tag of its records and counts.
    pub tag: Tag,
    /// What conditions read.
    pub context: Context,
    /// True if dead registers and flags may be used; otherwise none is assumed to be dead.
    pub liveness: bool,
}

/// Gives a case a stack, without changing its instruction's operand. Returns `None` if that isn't possible.
pub fn with_stack(mut case: Case, cpu: &Cpu) -> Option<Case> {
    if matches!(
        case.insn.mnemonic(),
        Mnemonic::Str | Mnemonic::Sldt | Mnemonic::Smsw
    ) {
        // Linux emulates these for processes, and writes less than a CPU does (`arch/x86/kernel/umip.c`).
        return None;
    }
    let data = cpu.layout().data;
    let room = data + BELOW as u64..data + DATA_LEN as u64;
    let rsp = case.registers.rsp;
    if room.contains(&rsp) {
        return Some(case);
    }
    // RSP is then a base with an index, which compensates for the difference.
    let index = case.insn.memory_index();
    let scale = u64::from(case.insn.memory_index_scale());
    if case.insn.memory_base() != Register::RSP || index.size() != 8 {
        return None;
    }
    let middle = data + DATA_LEN as u64 / 2;
    let new = middle + rsp.wrapping_sub(middle) % scale;
    let field = field(&mut case.registers, index)?;
    *field = field.wrapping_add(rsp.wrapping_sub(new) / scale);
    case.registers.rsp = new;
    Some(case)
}

/// Executes a case's instruction alone, and with a jump on it and `nop`s behind it.
///
/// # Errors
/// If they disagree, or the system doesn't let them be executed. `Ok(Err)`: there is no detour for it.
pub fn compare(
    cpu: &mut Cpu,
    blocks: &Blocks,
    case: &Case,
    probe: &Probe,
) -> Result<Result<Agreed, DetourError>, Mismatch> {
    let layout = cpu.layout();
    let mut text = case.code.clone();
    let padding = if falls_through(case) { 0x90 } else { 0xcc };
    text.resize(text.len().max(JUMP_LEN), padding);
    let Some(region) = region::at(layout.code, &text) else {
        return Ok(Err(DetourError::Region {
            at: GuestVirtAddr(layout.code),
        }));
    };
    let dead = if probe.liveness {
        live::dead(&region.bytes[..region.end.into()], region.start)
    } else {
        Dead::default()
    };
    let environment = blocks.environment(case.gs_base);
    let (purpose, tag) = (&probe.purpose, probe.tag);
    let at = GuestVirtAddr(layout.copy);
    let detour = match detour::generate(&environment, &region, dead, purpose, tag, at) {
        Ok(detour) => detour,
        Err(error) => return Ok(Err(error)),
    };
    let fails = |what: String| {
        Err(Mismatch::Result(Box::new(Difference {
            what,
            case: case.clone(),
            probe: probe.clone(),
            dead,
            detour: detour.clone(),
        })))
    };

    let mut alone = cpu.execute(case)?;
    blocks.clear_cells(0, tag.cell);
    blocks.set_context(probe.context);
    let patched = region::patched(&region, &detour);
    let mut probed = cpu.execute_patched(case, &patched, &detour.code, layout.code)?;

    if let Some(why) = wrong_trace(
        blocks,
        case,
        probe,
        environment.variables.current_task.is_some(),
    ) {
        return fails(why);
    }
    if probed.fault.is_some() {
        let copy = detour
            .copies
            .first()
            .map(|(_, at)| layout.copy + u64::from(*at));
        if Some(probed.registers.rip) == copy {
            probed.registers.rip = layout.code;
        } else if case.insn.mnemonic() == Mnemonic::Call
            && copy.is_some_and(|copy| probed.registers.rip == copy + PUSH_LEN)
        {
            // The return address is pushed before the operand is read.
            probed.registers.rip = layout.code;
            probed.registers.rsp += 8;
        }
    }
    if dead.flags && alone.fault.is_none() {
        // The flags that an instruction leaves undefined aren't used.
        let undefined = undefined_flags(case);
        alone.registers.rflags &= !undefined;
        probed.registers.rflags &= !undefined;
    }
    if alone.fault.is_some() && probe.liveness {
        // Registers that the instruction would have overwritten still have their old values, which aren't used.
        alone.registers = without(alone.registers, dead);
        probed.registers = without(probed.registers, dead);
    }
    forget_below_stack(case, &alone, &mut probed, layout.data);
    if alone == probed {
        return Ok(Ok(match alone.fault {
            Some(_) => Agreed::Faulted,
            None => Agreed::Done,
        }));
    }
    if depends_below_stack(cpu, case)? {
        return Ok(Ok(Agreed::NotComparable));
    }
    fails(format!(
        "alone {:x?} {:?}\nprobed {:x?} {:?}\ndata {}, vectors {}, fpu {}",
        alone.registers,
        alone.fault,
        probed.registers,
        probed.fault,
        alone.data == probed.data,
        alone.vectors == probed.vectors,
        alone.fpu == probed.fpu
    ))
}

fn falls_through(case: &Case) -> bool {
    !matches!(
        case.insn.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// Returns how a hit's record or count differs from what it should be.
fn wrong_trace(blocks: &Blocks, case: &Case, probe: &Probe, has_task: bool) -> Option<String> {
    let Probe {
        purpose,
        tag,
        context,
        ..
    } = probe;
    let holds = |check: &probe_engine::condition::Comparison| check.holds(&case.registers, context);
    let hits = usize::from(purpose.condition.iter().all(holds));
    let set = purpose.capture.and_then(Capture::fetches);
    let expected = Record {
        detour: tag.number,
        returns: false,
        tsc: 0,
        task: if has_task { blocks.task(0) } else { 0 },
        registers: set
            .map(|set| recorded(set, &case.registers))
            .unwrap_or_default(),
    };
    let mut records = blocks.drain(0);
    let count = blocks.cell(0, tag.cell) as usize;
    let (wanted, wanted_count) = match set {
        Some(_) => (vec![expected; hits], 0),
        None => (Vec::new(), hits),
    };
    if records.iter().any(|record| record.tsc == 0) {
        return Some("a record without its time".to_owned());
    }
    for record in &mut records {
        record.tsc = 0;
    }
    (records != wanted || count != wanted_count)
        .then(|| format!("{records:x?} and {count}, not {wanted:x?} and {wanted_count}"))
}

/// The values of a record.
pub fn recorded(set: Fetches, registers: &Registers) -> Vec<u64> {
    let values = in_encoding_order(registers);
    let of = |fetch| match fetch {
        Fetch::Flags => registers.rflags,
        Fetch::Register(number) => values[usize::from(number)],
    };
    set.iter().map(of).collect()
}

fn undefined_flags(case: &Case) -> u64 {
    use iced_x86::RflagsBits as Bits;
    let undefined = case.insn.rflags_undefined();
    [
        (Bits::CF, 0),
        (Bits::PF, 2),
        (Bits::AF, 4),
        (Bits::ZF, 6),
        (Bits::SF, 7),
        (Bits::OF, 11),
    ]
    .into_iter()
    .filter(|(bit, _)| undefined & bit != 0)
    .fold(0, |all, (_, at)| all | 1 << at)
}

fn without(registers: Registers, dead: Dead) -> Registers {
    const ARITHMETIC: u64 = 0x8d5;
    let mut values = in_encoding_order(&registers);
    for (number, value) in values.iter_mut().enumerate() {
        if dead.registers >> number & 1 == 1 {
            *value = 0;
        }
    }
    let flags = if dead.flags { ARITHMETIC } else { 0 };
    Registers {
        rip: registers.rip,
        rflags: registers.rflags & !flags,
        ..Registers::numbered(values)
    }
}

/// Returns the range of the bytes below RSP, in the data.
fn below(case: &Case, data: u64) -> std::ops::Range<usize> {
    let at = case.registers.rsp.wrapping_sub(data).min(DATA_LEN as u64) as usize;
    at.saturating_sub(BELOW)..at
}

/// Takes over bytes that the detour may have changed, if the instruction hasn't.
fn forget_below_stack(case: &Case, alone: &State, probed: &mut State, data: u64) {
    for at in below(case, data) {
        if alone.data[at] == case.data[at] {
            probed.data[at] = alone.data[at];
        }
    }
}

/// Returns true if the instruction reads bytes below RSP, which the detour may have changed.
fn depends_below_stack(cpu: &mut Cpu, case: &Case) -> std::io::Result<bool> {
    let data = cpu.layout().data;
    let range = below(case, data);
    let reads = |used: &UsedMemory| {
        let write = [OpAccess::Write, OpAccess::CondWrite].contains(&used.access());
        let at = used.virtual_address(0, |register, _, _| match register {
            Register::GS => Some(case.gs_base),
            _ if register.is_segment_register() => Some(0),
            _ => get(&case.registers, register),
        });
        let at = at.unwrap_or(data).wrapping_sub(data) as usize;
        let len = used.memory_size().size().max(1);
        !write && at < range.end && range.start < at.saturating_add(len)
    };
    let mut factory = InstructionInfoFactory::new();
    if factory.info(&case.insn).used_memory().iter().any(reads) {
        return Ok(true);
    }
    // The decoder's information isn't complete for strings, bits and states.
    let mut states = Vec::new();
    for fill in [0, 0xff, 0x55] {
        let mut other = case.clone();
        other.data[range.clone()].fill(fill);
        let mut state = cpu.execute(&other)?;
        for at in range.clone() {
            if state.data[at] == fill {
                state.data[at] = 0;
            }
        }
        states.push(state);
    }
    Ok(states.windows(2).any(|two| two[0] != two[1]))
}
