//! The way out of generated code: for a place where an interrupt has come into it, this tells what code of the guest's
//! comes next, and where the stack is then.
//!
//! Nothing is kept for that: generated code moves RSP by a few instructions only, so reading it onwards to its end
//! tells as much.

use std::collections::HashSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// What generated code leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayOut {
    /// The guest's code at this offset.
    Guest {
        /// From the start of the generated code.
        offset: u32,
        /// Bytes that RSP has grown by then.
        grown: i64,
    },
    /// A return address.
    Return {
        /// Bytes that it is above RSP.
        above: i64,
    },
}

/// Returns the first way out that `code` comes to from an offset on. `is_guests` tells at which offsets the guest's
/// code begins.
///
/// All ways through generated code leave RSP the same, so any of them will do. Returns `None` if no way leads out. For
/// bytes that aren't generated code the answer means nothing, but the search comes to an end.
pub(super) fn way_out(code: &[u8], from: u32, is_guests: impl Fn(u32) -> bool) -> Option<WayOut> {
    let mut seen = HashSet::new();
    let mut branches = vec![(from, 0)];
    while let Some((mut offset, mut grown)) = branches.pop() {
        while seen.insert(offset) {
            if is_guests(offset) {
                return Some(WayOut::Guest { offset, grown });
            }
            let Some(instruction) = decode(code, offset) else {
                break;
            };
            let target = instruction.near_branch64() as u32;
            offset = instruction.next_ip32();
            match instruction.flow_control() {
                FlowControl::Next => grown += grows(&instruction),
                // What is called returns with RSP as it was.
                FlowControl::Call | FlowControl::IndirectCall => {}
                FlowControl::ConditionalBranch => branches.push((target, grown)),
                FlowControl::UnconditionalBranch => offset = target,
                FlowControl::Return => return Some(WayOut::Return { above: grown }),
                _ => break,
            }
        }
    }
    None
}

/// Decodes the instruction at an offset, which is its address.
fn decode(code: &[u8], offset: u32) -> Option<Instruction> {
    let bytes = code.get(offset as usize..)?;
    let instruction = Decoder::with_ip(64, bytes, offset.into(), DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Bytes that RSP grows by.
fn grows(instruction: &Instruction) -> i64 {
    let is_lea = instruction.mnemonic() == Mnemonic::Lea;
    match is_lea && instruction.op0_register() == Register::RSP {
        true => instruction.memory_displacement64().cast_signed(),
        false => instruction.stack_pointer_increment().into(),
    }
}
