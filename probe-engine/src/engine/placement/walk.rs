//! Decoding through functions, from their starts to the instructions that are asked for.
//!
//! Where instructions begin is known only by decoding all before them. A batch may have thousands of probes in one
//! function, so each function is read and decoded once for all of them.

use std::ops::Range;
use std::sync::Arc;

use guest_state::x86_64::{INT3, MAX_INSTRUCTION_LEN};
use guest_state::{GuestVirtAddr, MemoryError};
use rustc_hash::FxHashMap;

use crate::engine::placement::body::Body;
use crate::error::RegisterError;
use crate::insn::{self, Decoded};
use crate::probe::Place;

/// Bytes of a function that are decoded again at most for another instruction of it.
const STRIDE: usize = 256;

/// The functions of a batch, as far as they were read and decoded.
#[derive(Debug, Default)]
pub(crate) struct Walks(FxHashMap<GuestVirtAddr, Walk>);

/// One function.
#[derive(Debug)]
pub(crate) struct Walk {
    start: GuestVirtAddr,
    bytes: Arc<[u8]>,
    /// True if the text ends with these bytes.
    ends: bool,
    /// Some of the instructions that were decoded, in order: the offset of each, and whether the one before leads to
    /// it.
    passed: Vec<(usize, bool)>,
}

/// The text of a function from its start to the end of an instruction. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct WalkedText {
    pub(crate) start: GuestVirtAddr,
    bytes: Arc<[u8]>,
    len: usize,
}

/// See [`WalkedText::id`]. It has no meaning once the texts are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TextId(usize);

impl Walks {
    /// Returns the function at `start`, with `wanted` bytes of the text from there, or with all that there are. `None`
    /// if it begins outside the body.
    pub(crate) fn through(
        &mut self,
        body: &dyn Body,
        start: GuestVirtAddr,
        wanted: usize,
    ) -> Option<Result<&mut Walk, MemoryError>> {
        let known = self.0.get(&start);
        if known.is_none_or(|walk| walk.bytes.len() < wanted && !walk.ends) {
            // The next place is often a little further on.
            let len = wanted.saturating_mul(2);
            let bytes: Arc<[u8]> = match body.text(start, len)? {
                Ok(bytes) => bytes.into(),
                Err(error) => return Some(Err(error)),
            };
            let walk = Walk {
                start,
                ends: bytes.len() < len,
                bytes,
                passed: Vec::new(),
            };
            self.0.insert(start, walk);
        }
        self.0.get_mut(&start).map(Ok)
    }
}

impl Walk {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its text up to `len` bytes from its start.
    pub(crate) fn text(&self, len: usize) -> WalkedText {
        WalkedText {
            start: self.start,
            len: len.min(self.bytes.len()),
            bytes: Arc::clone(&self.bytes),
        }
    }

    /// Decodes the instruction at offset `to`, by way of all between it and `from`, which is the same for all
    /// instructions of a function.
    pub(crate) fn reach(
        &mut self,
        body: &dyn Body,
        place: &Place,
        from: usize,
        to: usize,
    ) -> Result<Decoded, RegisterError> {
        let shown = || place.to_string();
        let before = self.passed.partition_point(|(at, _)| *at <= to);
        let nearest = before.checked_sub(1).map(|index| self.passed[index]);
        // After a return or jump, or a call that leads over it, an int3 is padding (`CONFIG_SLS`); elsewhere
        // it hides an instruction of unknown length, unless it is the text's own.
        let (mut at, mut reachable) = nearest.unwrap_or((from, true));
        let mut padding = None;
        loop {
            let last = self.passed.last();
            if last.is_none_or(|(passed, _)| passed + STRIDE <= at) {
                self.passed.push((at, reachable));
            }
            let address = self.start.wrapping_add(at as u64);
            let code = self.decode(place, at)?;
            let instruction = || insn::text(&code.insn);
            if at == to {
                if insn::is_trap(&code.insn) {
                    return Err(RegisterError::Trap {
                        place: shown(),
                        instruction: instruction(),
                    });
                }
                return match insn::forbidden(&code.insn) {
                    Some(why) => Err(RegisterError::Unsupported {
                        place: shown(),
                        instruction: instruction(),
                        why,
                    }),
                    None => Ok(code),
                };
            }
            let int3 = self.bytes.get(at) == Some(&INT3);
            // All of it up to `to` is padding: the function ends in a call that never returns.
            if int3 && at >= *padding.get_or_insert_with(|| self.padding_before(to)) {
                return Err(RegisterError::Trap {
                    place: shown(),
                    instruction: instruction(),
                });
            }
            let hides = int3 && !body.is_own_int3(address);
            if hides && reachable {
                return Err(RegisterError::GuestBreakpoint {
                    place: shown(),
                    at: address,
                });
            }
            reachable = !hides
                && !insn::never_falls_through(&code.insn)
                && !insn::calls_over_a_byte(&code.insn);
            at += code.insn.len();
            if at > to {
                return Err(RegisterError::InsideInstruction {
                    place: shown(),
                    start: address,
                    instruction: instruction(),
                });
            }
        }
    }

    /// Returns the offset from which on all bytes are int3s up to the one at `to`.
    fn padding_before(&self, to: usize) -> usize {
        let text = self.bytes.get(..=to).unwrap_or(&self.bytes);
        let other = text.iter().rposition(|byte| *byte != INT3);
        other.map_or(0, |at| at + 1)
    }

    fn decode(&self, place: &Place, at: usize) -> Result<Decoded, RegisterError> {
        let address = self.start.wrapping_add(at as u64);
        let bytes = self.bytes.get(at..).unwrap_or_default();
        insn::decode(bytes, address).map_err(|insn::Undecodable| {
            let shown = bytes
                .iter()
                .take(MAX_INSTRUCTION_LEN)
                .map(|byte| format!("{byte:02x}"));
            RegisterError::Undecodable {
                place: place.to_string(),
                at: address,
                bytes: shown.collect::<Vec<_>>().join(" "),
            }
        })
    }
}

impl WalkedText {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn range(&self) -> Range<GuestVirtAddr> {
        self.start..self.start.wrapping_add(self.len as u64)
    }

    /// An identifier that it shares with all texts that were read at once with it, and with no
    /// other.
    pub(crate) fn id(&self) -> TextId {
        TextId(self.bytes.as_ptr().addr())
    }

    /// Returns the longest of each group of texts that were read at once.
    pub(crate) fn longest<'t>(texts: impl Iterator<Item = &'t Self>) -> Vec<&'t Self> {
        let mut longest: FxHashMap<TextId, &Self> = FxHashMap::default();
        for text in texts {
            let known = longest.entry(text.id()).or_insert(text);
            if known.len < text.len {
                *known = text;
            }
        }
        longest.into_values().collect()
    }
}

#[cfg(test)]
mod tests;
