//! The bytes that a jump takes.

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use probe_engine::detour::{Detour, JUMP_LEN, Region};

/// `nop`
const NOP: u8 = 0x90;
/// `int3`, which compilers and linkers put between functions.
const PADDING: u8 = 0xcc;

/// Returns the region of the instructions that `text` begins with, as few as a jump needs, and of
/// the padding behind the last one; `None` if that isn't long enough, or there are no instructions.
pub fn at(start: u64, text: &[u8]) -> Option<Region> {
    let mut starts = Vec::new();
    let mut end = 0;
    for insn in Decoder::with_ip(64, text, start, DecoderOptions::NONE) {
        if insn.is_invalid() {
            return None;
        }
        starts.push(end as u8);
        end += insn.len();
        let goes_on = !matches!(
            insn.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
        if end >= JUMP_LEN || !goes_on {
            break;
        }
    }
    let len = end.max(JUMP_LEN);
    let padding = text.get(end..len)?;
    padding.iter().all(|byte| *byte == PADDING).then(|| Region {
        start: GuestVirtAddr(start),
        bytes: text[..len].to_vec(),
        starts,
        end: end as u8,
        beyond: Vec::new(),
    })
}

/// Returns the region's bytes with the jump: a jump to the detour, and nops.
pub fn patched(region: &Region, detour: &Detour) -> Vec<u8> {
    let by = detour.at.0.wrapping_sub(region.start.0 + JUMP_LEN as u64);
    let mut bytes = vec![0xe9];
    bytes.extend((by as i32).to_le_bytes());
    bytes.resize(region.bytes.len(), NOP);
    bytes
}
