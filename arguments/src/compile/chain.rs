//! A value that is being compiled: where it begins, what has been followed, where it is now.

use guest_kernel::btf::TypeId;
use probe_engine::value::{Base, Load, Space, Take, Value};

use crate::error::Cause;

/// How many pointers a value follows at most, the last one included: what the kernel's list of
/// `FETCH_INSN_MAX` operations has room for (`kernel/trace/trace_probe.h`).
const DEREFERENCES_MAX: usize = 14;
/// RSP.
const RSP: u8 = 4;

/// What the types tell of a value.
#[derive(Debug, Clone, Copy)]
pub struct Typed {
    pub id: TypeId,
    /// For a bit field: its first bit, from the lowest of the first byte, and how many there are. Else 0.
    pub shift: u8,
    pub bits: u8,
}

impl Typed {
    pub fn new(id: TypeId) -> Self {
        Self {
            id,
            shift: 0,
            bits: 0,
        }
    }
}

/// A value that is being compiled.
#[derive(Debug, Clone)]
pub struct Chain {
    pub base: Base,
    loads: Vec<Load>,
    /// How many pointers the text tells to follow.
    followed: usize,
    /// Where in memory the value is; `None` if it is the word itself.
    pub at: Option<Load>,
    /// Its type, where that is known.
    pub typed: Option<Typed>,
    /// The words of a structure that registers hold; none for other values.
    pub words: Vec<Base>,
    /// How many bits into these words the value is.
    pub inside: u64,
    /// Whether the word is one of the stack's, by its number.
    pub is_stack_entry: bool,
}

impl Chain {
    /// A word that is known without following a pointer.
    pub fn word(base: Base) -> Self {
        Self {
            base,
            loads: Vec::new(),
            followed: 0,
            at: None,
            typed: None,
            words: Vec::new(),
            inside: 0,
            is_stack_entry: false,
        }
    }

    /// A structure in registers.
    pub fn words(words: Vec<Base>) -> Self {
        let base = words.first().copied().unwrap_or(Base::Constant(0));
        Self {
            words,
            ..Self::word(base)
        }
    }

    /// The word of that number on the stack.
    pub fn stack_entry(number: u32) -> Self {
        Self {
            loads: vec![Load {
                offset: i64::from(number) * 8,
                space: Space::Any,
            }],
            is_stack_entry: true,
            ..Self::word(Base::Register(RSP))
        }
    }

    /// What is in memory at an address.
    pub fn memory(address: u64) -> Self {
        let at = Load {
            offset: 0,
            space: Space::Any,
        };
        Self {
            at: Some(at),
            followed: 1,
            ..Self::word(Base::Constant(address))
        }
    }

    /// Moves on to what is in memory at `offset` bytes from the address that the value is.
    pub fn dereference(mut self, offset: i64, space: Space) -> Result<Self, Cause> {
        self.words.clear();
        self.loads.extend(self.at);
        self.at = Some(Load { offset, space });
        self.typed = None;
        self.followed += 1;
        if self.followed > DEREFERENCES_MAX {
            return Err(Cause::TooManyLoads);
        }
        Ok(self)
    }

    /// Moves on to what is `bytes` bytes further in memory.
    pub fn forward(mut self, bytes: u64) -> Result<Self, Cause> {
        let at = self.at.as_mut().ok_or(Cause::Untyped)?;
        at.offset = i64::try_from(bytes)
            .ok()
            .and_then(|bytes| at.offset.checked_add(bytes))
            .ok_or(Cause::OffsetTooLarge)?;
        Ok(self)
    }

    pub fn of_type(mut self, typed: Typed) -> Self {
        self.typed = Some(typed);
        self
    }

    /// Takes the value: `len` bytes of memory, or the word.
    pub fn take(self, len: u16) -> Value {
        let take = match self.at {
            Some(at) => Take::Memory { at, len },
            None => Take::Word,
        };
        Value {
            base: self.base,
            loads: self.loads,
            take,
        }
    }

    /// Takes the text at where the value is, or the text that the word leads to.
    pub fn take_text(self, user: bool, most: u16) -> Value {
        let at = self.at.unwrap_or(Load {
            offset: 0,
            space: Space::Any,
        });
        let space = if user { Space::User } else { at.space };
        let at = Load { space, ..at };
        Value {
            base: self.base,
            loads: self.loads,
            take: Take::Text { at, most },
        }
    }
}
