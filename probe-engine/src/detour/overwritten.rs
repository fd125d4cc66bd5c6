//! The overwritten instructions of a region, as they are executed in the detour.

use guest_state::GuestVirtAddr;
use iced_x86::code_asm::{CodeAssembler, CodeLabel};
use iced_x86::{Code as Kind, FlowControl, IcedError, Instruction, Mnemonic, OpKind, Register};

use super::error::DetourError;
use super::region::Region;
use crate::insn::{Decoded, decode, never_falls_through, prefixes_len};
use crate::relocate;

/// Where in the region an instruction is, and the index of the assembler's instruction that marks its copy.
pub(super) type Mark = (u8, usize);

/// Writes the copies and the jump to what is behind the region, whose mark is the last. `first` becomes
/// the label of the probed instruction's copy.
pub(super) fn write(
    a: &mut CodeAssembler,
    region: &Region,
    first: &mut CodeLabel,
) -> Result<Vec<Mark>, DetourError> {
    let mut marks = Vec::new();
    let mut falls_through = true;
    for (offset, code, bytes) in instructions(region)? {
        marks.push((offset, a.instructions().len()));
        if offset == 0 {
            a.set_label(first)?;
            a.zero_bytes()?;
        } else {
            // By this, branches from one of the region's instructions to another find the copy. Those to the first
            // instruction must not: they have to meet the probe again.
            let mut mark = Instruction::with(Kind::Zero_bytes);
            mark.set_ip(region.start.wrapping_add(offset.into()).0);
            a.add_instruction(mark)?;
        }
        copy(a, region, &code, bytes)?;
        falls_through = !never_falls_through(&code.insn) && !is_call(&code.insn);
    }
    let behind = region.next().offset_from(region.start);
    let behind = behind.and_then(|len| u8::try_from(len).ok());
    let behind = behind.ok_or(DetourError::Region { at: region.start })?;
    marks.push((behind, a.instructions().len()));
    if falls_through {
        jump(a, region.next().0)?;
    }
    Ok(marks)
}

/// An instruction, how far from the region's start, and its bytes.
type Original<'a> = (u8, Decoded, &'a [u8]);

fn instructions(region: &Region) -> Result<Vec<Original<'_>>, DetourError> {
    let malformed = || DetourError::Region { at: region.start };
    let whole = region
        .bytes
        .get(..region.end.into())
        .ok_or_else(malformed)?;
    let mut found = Vec::new();
    for (text, from) in [(whole, 0), (&*region.beyond, whole.len())] {
        let mut done = 0;
        while done < text.len() {
            let offset = u8::try_from(from + done).map_err(|_| malformed())?;
            let at = region.start.wrapping_add(offset.into());
            let rest = text.get(done..).ok_or_else(malformed)?;
            let code = decode(rest, at).map_err(|_| malformed())?;
            let len = code.insn.len();
            found.push((offset, code, rest.get(..len).ok_or_else(malformed)?));
            done += len;
        }
    }
    let starts = found.iter().map(|(offset, ..)| *offset);
    if starts
        .filter(|at| *at < region.end)
        .eq(region.starts.iter().copied())
        && region.end > 0
    {
        Ok(found)
    } else {
        Err(malformed())
    }
}

fn copy(
    a: &mut CodeAssembler,
    region: &Region,
    code: &Decoded,
    bytes: &[u8],
) -> Result<(), DetourError> {
    let insn = &code.insn;
    let at = GuestVirtAddr(insn.ip());
    let bound = |reason| DetourError::Bound { at, reason };
    if code.prefixes.operand_size && insn.flow_control() != FlowControl::Next {
        // Processors differ in what they make of it (SDM vol. 2, JMP; APM vol. 3, JMP).
        return Err(bound(
            "it is a branch to an address of 16 bits on some processors",
        ));
    }
    let bytes = relocate::anywhere(code, bytes).map_err(bound)?;
    if is_call(insn) {
        push_return_address(a, region, insn)?;
    }
    match insn.op0_kind() {
        OpKind::NearBranch64 => {
            check_target(region, insn)?;
            branch(a, insn)?;
        }
        OpKind::NearBranch16 | OpKind::NearBranch32 => {
            return Err(bound("it branches to an address of 16 or 32 bits"));
        }
        _ if is_call(insn) => a.db(&called(insn, bytes).map_err(bound)?)?,
        _ => a.db(&bytes)?,
    }
    Ok(())
}

fn is_call(insn: &Instruction) -> bool {
    insn.mnemonic() == Mnemonic::Call
}

/// Writes a relative branch, or the jump that is left of a relative call.
fn branch(a: &mut CodeAssembler, insn: &Instruction) -> Result<(), IcedError> {
    let target = insn.near_branch64();
    if matches!(
        insn.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::Call
    ) {
        return jump(a, target);
    }
    let mut branch = *insn;
    branch.as_near_branch();
    branch.set_ip(0);
    a.add_instruction(branch)
}

fn jump(a: &mut CodeAssembler, to: u64) -> Result<(), IcedError> {
    a.add_instruction(Instruction::with_branch(Kind::Jmp_rel32_64, to)?)
}

/// Checks that a branch goes to the probe, to another instruction of the region, or out of it.
fn check_target(region: &Region, insn: &Instruction) -> Result<(), DetourError> {
    let into = insn.near_branch64().wrapping_sub(region.start.0);
    let inside = into < region.bytes.len() as u64;
    if inside && !region.starts.iter().any(|start| u64::from(*start) == into) {
        return Err(DetourError::IntoInstruction {
            at: GuestVirtAddr(insn.ip()),
        });
    }
    Ok(())
}

/// Writes the first half of a call. The return address is that of the original, so stack traces and code that asks for
/// the caller see what they would see without the probe.
fn push_return_address(
    a: &mut CodeAssembler,
    region: &Region,
    insn: &Instruction,
) -> Result<(), DetourError> {
    let at = GuestVirtAddr(insn.ip());
    let to = insn.next_ip();
    if to.wrapping_sub(region.start.0) < region.bytes.len() as u64 && to != region.next().0 {
        return Err(DetourError::ReturnsInside { at });
    }
    let address = i32::try_from(to.cast_signed()).map_err(|_| DetourError::ReturnAddress { at })?;
    a.add_instruction(Instruction::with1(Kind::Pushq_imm32, address)?)?;
    Ok(())
}

/// Returns the second half of a call through a register or memory: `jmp` with the same operand, FF /4 instead of FF /2
/// (SDM vol. 2, CALL and JMP). If reading memory faults, the return address is there already; the handler doesn't look
/// at it, and the detour goes on from there.
fn called(insn: &Instruction, mut bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    const OTHER: &str = "it is a call of a rare form";
    const REG: u8 = 0b111 << 3;
    const JMP: u8 = 4 << 3;
    if insn.code() != Kind::Call_rm64 {
        return Err(OTHER);
    }
    let operands = [insn.op0_register(), insn.memory_base(), insn.memory_index()];
    if operands.contains(&Register::RSP) {
        return Err("it is a call by the stack pointer, which pushing its return address changes");
    }
    let opcode = prefixes_len(&bytes);
    match bytes.get_mut(opcode..) {
        Some([0xff, mod_rm, ..]) => *mod_rm = *mod_rm & !REG | JMP,
        _ => return Err(OTHER),
    }
    Ok(bytes)
}
