//! One instruction, executed somewhere else.
//!
//! A copy does at its place exactly what the instruction does at its own, but for where execution goes on: `passing`
//! appends that. Instructions that would show the difference are refused: code that reads, pushes or records its own
//! address, branches, and what must stay next to its neighbour. A copy is verbatim, redundant prefixes and all; only
//! the displacement of an operand that is addressed by RIP is rewritten, and the result decoded to see that it is the
//! same instruction on the same address.
//!
//! An exception that a copy raises shows the guest the copy's address: see `Raises`. A guest's own
//! data breakpoints (DR0 to DR3) show it too, as do stack traces from an interrupt in a copy.

mod continuation;
mod copied;
mod division;
mod place;
mod raises;

#[cfg(test)]
mod tests;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::MAX_INSTRUCTION_LEN;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};

use crate::insn::{Decoded, decode};

pub(crate) use continuation::passing;
pub(crate) use copied::{Copied, Reason};
pub(crate) use division::Division;
pub(crate) use place::bound_in_detour;
pub(crate) use raises::{Raises, Vector};

/// What became of one instruction, for comparing it with the original on real CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// The copy alone.
    pub copy: Vec<u8>,
    /// With the jump to the instruction after the original, where that is in reach.
    pub boosted: Option<Vec<u8>>,
}

/// Relocates the instruction that `bytes` begin with from `at` to `to`: for comparing what that
/// does with real CPUs.
///
/// # Errors
/// The reason why a copy would do something else.
pub fn for_comparison(
    bytes: &[u8],
    at: GuestVirtAddr,
    to: GuestVirtAddr,
) -> Result<Compared, &'static str> {
    let code = decode(bytes, at).map_err(|_| "it is no instruction")?;
    let copied = one(&code, bytes, to)?;
    let next = at.wrapping_add(code.insn.len() as u64);
    Ok(Compared {
        boosted: passing(&copied, next).ok(),
        copy: copied.bytes,
    })
}

/// The field `rm` of `ModRM` (with `mod` 0) that means RIP and a displacement, and the one that
/// announces a SIB byte (SDM vol. 2, tables 2-2 and 2-7).
const RM: u8 = 0b111;
const RM_RIP: u8 = 0b101;
const RM_SIB: u8 = 0b100;
/// The SIB byte for a displacement alone: no base, no index (SDM vol. 2, table 2-3).
const SIB_ABSOLUTE: u8 = 0x25;
/// Length of the displacement in bytes.
const DISPLACEMENT: usize = 4;

/// Makes the copy at `to` of the instruction that `bytes` begin with, of which `code` is the decoded form.
///
/// An operand addressed by RIP is addressed from `to`; where that is more than 2 GiB away (per-CPU
/// variables of Linux 6.9 and later are near address 0), by its absolute address, which for the
/// kernel image, modules and per-CPU offsets fits in 32 bits.
///
/// # Errors
/// The reason why the copy would do something else.
pub(crate) fn one(code: &Decoded, bytes: &[u8], to: GuestVirtAddr) -> Result<Copied, Reason> {
    if let Some(why) = place::bound(&code.insn) {
        return Err(why);
    }
    let original = bytes
        .get(..code.insn.len())
        .ok_or("its bytes are incomplete")?;
    if !code.insn.is_ip_rel_memory_operand() {
        return Ok(Copied {
            to,
            bytes: original.to_vec(),
        });
    }
    let bytes = match displaced(&code.insn, original, to) {
        Some(bytes) => bytes,
        None => absolute(&code.insn, original)?,
    };
    let copy = decode(&bytes, to).map_err(|_| "its operand can't be addressed from elsewhere")?;
    if copy.insn.len() != bytes.len() || !same(&code.insn, &copy.insn) {
        return Err("its operand can't be addressed from elsewhere");
    }
    Ok(Copied { to, bytes })
}

/// Makes an instruction that does the same at any address: an operand addressed by RIP gets its absolute address. Not
/// for branches.
///
/// # Errors
/// The reason why that can't be part of a detour.
pub(crate) fn anywhere(code: &Decoded, bytes: &[u8]) -> Result<Vec<u8>, Reason> {
    if let Some(why) = bound_in_detour(&code.insn) {
        return Err(why);
    }
    let original = bytes
        .get(..code.insn.len())
        .ok_or("its bytes are incomplete")?;
    if !code.insn.is_ip_rel_memory_operand() {
        return Ok(original.to_vec());
    }
    const OTHER: Reason = "its operand has no other form of address";
    let bytes = absolute(&code.insn, original)?;
    let copy = decode(&bytes, GuestVirtAddr(code.insn.ip())).map_err(|_| OTHER)?;
    if copy.insn.len() != bytes.len() || !same(&code.insn, &copy.insn) {
        return Err(OTHER);
    }
    Ok(bytes)
}

/// Returns `original` with its displacement counted from `to`, if that fits.
fn displaced(insn: &Instruction, original: &[u8], to: GuestVirtAddr) -> Option<Vec<u8>> {
    let end = to.wrapping_add(original.len() as u64).0;
    let by = insn.ip_rel_memory_address().wrapping_sub(end);
    let by = if insn.memory_base() == Register::EIP {
        // Addresses of 32 bits wrap around, so everything is in reach.
        by as u32
    } else {
        i32::try_from(by.cast_signed()).ok()?.cast_unsigned()
    };
    let at = displacement_offset(insn, original)?;
    let mut bytes = original.to_vec();
    bytes
        .get_mut(at..at + DISPLACEMENT)?
        .copy_from_slice(&by.to_le_bytes());
    Some(bytes)
}

/// Returns `original` with a SIB byte that makes its displacement an absolute address.
fn absolute(insn: &Instruction, original: &[u8]) -> Result<Vec<u8>, Reason> {
    const FAR: Reason = "its operand is out of reach from any other place";
    let address = i32::try_from(insn.ip_rel_memory_address().cast_signed()).map_err(|_| FAR)?;
    if original.len() == MAX_INSTRUCTION_LEN {
        return Err("it has no room for the other form of address that a copy needs");
    }
    let at = displacement_offset(insn, original).ok_or(FAR)?;
    let (before, after) = original.split_at(at);
    let (mod_rm, before) = before.split_last().ok_or(FAR)?;
    if mod_rm & RM != RM_RIP {
        return Err(FAR);
    }
    let mut bytes = before.to_vec();
    bytes.push(mod_rm & !RM | RM_SIB);
    bytes.push(SIB_ABSOLUTE);
    bytes.extend(address.to_le_bytes());
    bytes.extend(after.get(DISPLACEMENT..).ok_or(FAR)?);
    Ok(bytes)
}

/// Finds where in the instruction its displacement is.
fn displacement_offset(insn: &Instruction, bytes: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::with_ip(64, bytes, insn.ip(), DecoderOptions::NONE);
    let again = decoder.decode();
    let constants = decoder.get_constant_offsets(&again);
    (constants.displacement_size() == DISPLACEMENT).then(|| constants.displacement_offset())
}

/// Returns true if two instructions differ in nothing but where they are and in how they address
/// the same memory: by RIP or absolutely.
fn same(original: &Instruction, copy: &Instruction) -> bool {
    let mut expected = *original;
    if copy.memory_base() == Register::None {
        expected.set_memory_base(Register::None);
        expected.set_memory_displ_size(copy.memory_displ_size());
    }
    expected == *copy
}
