//! Values that a hit is asked for besides registers: where each begins, how pointers are followed, and what
//! is taken at the end. They are the same for breakpoints and for the code of detours.

mod encode;
mod take;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use encode::{Encoder, FAULT, STATUS};
pub use encode::{Recorded, encoded_max};
pub use take::{Bases, take};

/// Most bytes of a value.
pub const VALUE_MAX: u16 = 1536;
/// Most pointers that a value follows.
pub const LOADS_MAX: usize = 16;

/// A value to take at a hit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Value {
    /// Where it begins.
    pub base: Base,
    /// The pointers that are followed, one after the other.
    pub loads: Vec<Load>,
    /// What is taken at the end.
    pub take: Take,
}

/// The values of a probe, in their order.
pub type Values = Arc<[Value]>;

/// Where a value begins: a word that is known without looking into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Base {
    /// A general register, by its number in instruction encodings (Intel SDM vol. 2, table 2-4). At the return
    /// of a function these are the registers that the caller finds.
    Register(u8),
    /// A general register at the function's entry. Only a return has it.
    EntryRegister(u8),
    /// RFLAGS.
    Flags,
    /// RIP.
    InstructionPointer,
    /// A constant.
    Constant(u64),
    /// The address of the current task's `task_struct`.
    Task,
    /// The number of the vCPU.
    Cpu,
}

/// A pointer that is followed: the word in memory at `offset` bytes from the value so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Load {
    /// Bytes from the value.
    pub offset: i64,
    /// Whose memory it is.
    pub space: Space,
}

/// Whose memory an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Any memory that is mapped there.
    Any,
    /// The process': kernel addresses are not followed.
    User,
}

/// What is taken at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Take {
    /// The word itself: 8 bytes, in the order of memory.
    Word,
    /// The memory that the word leads to.
    Memory {
        /// How it is reached.
        at: Load,
        /// How many bytes, at most [`VALUE_MAX`].
        len: u16,
    },
    /// The text that the word leads to, up to the first NUL, which is left out.
    Text {
        /// How it is reached.
        at: Load,
        /// How many bytes at most, at most [`VALUE_MAX`].
        most: u16,
    },
    /// The stack from where the word leads to, as far as it is there. If that is the CPU's stack for interrupts, it is
    /// taken up to its top word, and then the stack that the interrupt has left: see [`stack_pieces`]. A detour puts
    /// back the return addresses that its trampoline's address ([`crate::calls`]) has replaced: when the record is
    /// read, the calls may have ended.
    Stack {
        /// How it is reached.
        at: Load,
        /// How many bytes of both at most; with [`PIECE`] at most [`VALUE_MAX`].
        most: u16,
    },
}

impl Value {
    /// Returns true if the value can be taken from registers alone.
    pub fn is_in_registers(&self) -> bool {
        self.loads.is_empty() && self.take == Take::Word
    }

    /// The most bytes that it has.
    pub fn bytes_max(&self) -> u16 {
        match self.take {
            Take::Word => 8,
            Take::Memory { len, .. } => len,
            Take::Text { most, .. } => most,
            Take::Stack { most, .. } => PIECE + most,
        }
    }
}

/// The number of RSP in instruction encodings.
const RSP: u8 = 4;

/// The piece of the stack that a jump's record has for a stack trace: the innermost callers have their frames there.
pub(crate) fn stack_piece() -> Value {
    Value {
        base: Base::Register(RSP),
        loads: Vec::new(),
        take: Take::Stack {
            at: Load {
                offset: 0,
                space: Space::Any,
            },
            most: VALUE_MAX - PIECE,
        },
    }
}

/// Bytes before the pieces of a stack: how long the first one is.
pub const PIECE: u16 = 8;
/// Length of a CPU's stack for interrupts (`IRQ_STACK_SIZE`, Linux `arch/x86/include/asm/page_64_types.h`).
pub const INTERRUPT_STACK_LEN: u64 = 16 << 10;

/// Returns the pieces of a stack that a value has, each with its address: one at `start`, and one where the last word
/// of the first leads to. Either may be empty.
pub fn stack_pieces(start: u64, bytes: &[u8]) -> [(u64, &[u8]); 2] {
    let (len, bytes) = bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
    let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
    let (first, second) = bytes.split_at(len.min(bytes.len()));
    let left = first.last_chunk().copied().map_or(0, u64::from_le_bytes);
    [(start, first), (left, second)]
}

/// A value as it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// A pointer led to memory that is not there.
    Fault,
}
