//! The form that values have in a record: for each of them one word with its length in bytes, or with
//! [`FAULT`], and then its bytes in as many words as they take.

use std::ops::Deref;

use super::{Taken, Value};

/// In the place of a length: the value could not be taken.
pub(crate) const FAULT: u64 = u64::MAX;
/// Bytes of the word that tells a value's length.
pub(crate) const STATUS: u64 = 8;

const WORD: usize = 8;

/// Most bytes that values take in a record.
pub fn encoded_max(values: &[Value]) -> u64 {
    let one = |value: &Value| STATUS + u64::from(value.bytes_max()).next_multiple_of(WORD as u64);
    values.iter().map(one).sum()
}

/// Values as a record has them: in words of their own, or in those of the record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded<Words = Box<[[u8; WORD]]>>(pub(super) Words);

impl<'a> Recorded<&'a [[u8; WORD]]> {
    /// Takes these values from the front of a record's words. Returns `None` if they aren't there, or are longer than
    /// they can be.
    pub(crate) fn split_off(values: &[Value], words: &mut &'a [[u8; WORD]]) -> Option<Self> {
        let mut left = *words;
        for value in values {
            let status = u64::from_le_bytes(*left.split_off_first()?);
            if status == FAULT {
                continue;
            }
            let len = u16::try_from(status).ok()?;
            if len > value.bytes_max() {
                return None;
            }
            left.split_off(..usize::from(len).div_ceil(WORD))?;
        }
        words.split_off(..words.len() - left.len()).map(Self)
    }
}

impl<Words: Deref<Target = [[u8; WORD]]>> Recorded<Words> {
    /// The values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Taken> {
        self.raw().map(|bytes| match bytes {
            Some(bytes) => Taken::Bytes(bytes.to_vec()),
            None => Taken::Fault,
        })
    }

    /// Copies the values to words of their own.
    pub(crate) fn to_boxed(&self) -> Recorded {
        Recorded((*self.0).into())
    }

    /// Returns those of the values that `wanted` has, in its order; `all` says what values these
    /// are.
    pub(crate) fn choose(&self, all: &[Value], wanted: &[Value]) -> Recorded {
        if all == wanted {
            return self.to_boxed();
        }
        let mut encoder = Encoder::default();
        for value in wanted {
            let mut found = all.iter().zip(self.raw());
            let found = found.find_map(|(it, bytes)| (it == value).then_some(bytes));
            encoder.push(found.flatten());
        }
        encoder.end()
    }

    /// Returns the bytes of the value `wanted`; `all` says what values these are.
    pub(crate) fn bytes_of(&self, all: &[Value], wanted: &Value) -> Option<&[u8]> {
        let mut found = all.iter().zip(self.raw());
        found.find_map(|(it, bytes)| bytes.filter(|_| it == wanted))
    }

    /// The bytes of each value; `None` for one that could not be taken.
    fn raw(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut left = &*self.0;
        std::iter::from_fn(move || {
            let status = u64::from_le_bytes(*left.split_off_first()?);
            let Ok(len) = u16::try_from(status) else {
                return Some(None);
            };
            let len = usize::from(len);
            let words = left.split_off(..len.div_ceil(WORD))?;
            Some(words.as_flattened().get(..len))
        })
    }
}

/// Makes the form of a record, value by value.
#[derive(Debug, Default)]
pub(crate) struct Encoder(Vec<[u8; WORD]>);

impl Encoder {
    /// Adds a value's bytes, at most [`super::VALUE_MAX`]; `None` for one that could not be taken.
    pub(crate) fn push(&mut self, bytes: Option<&[u8]>) {
        let Some(bytes) = bytes else {
            self.0.push(FAULT.to_le_bytes());
            return;
        };
        self.0.push((bytes.len() as u64).to_le_bytes());
        let (words, rest) = bytes.as_chunks();
        self.0.extend_from_slice(words);
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            self.0.push(last);
        }
    }

    pub(crate) fn end(self) -> Recorded {
        Recorded(self.0.into())
    }
}
