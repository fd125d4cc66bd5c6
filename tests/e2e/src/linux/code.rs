//! The guest's text, decoded.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::guest::Guest;
use crate::test::Failure;

/// Decodes these bytes from their start, one instruction after the other, as far as they decode.
pub fn decode(address: u64, bytes: &[u8]) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let mut found = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        found.push(instruction);
    }
    found
}

/// Returns the instructions of a function from its start to the first that can branch, that one
/// included: each is executed whenever the function is called.
///
/// # Errors
/// If there is no such symbol.
pub async fn straight(guest: &Guest, function: &str) -> Result<Vec<Instruction>, Failure> {
    let start = guest.symbol(function).await?;
    let bytes = guest.memory(start, 0x100).await?;
    let all = decode(start, &bytes);
    // The call of the function tracer doesn't end the straight part.
    let end = all.iter().enumerate().position(|(index, instruction)| {
        instruction.flow_control() != FlowControl::Next && index > 1
    });
    Ok(all[..end.map_or(all.len(), |end| end + 1)].to_vec())
}
