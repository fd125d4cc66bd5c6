//! What a probe does to its guest at a hit, besides reporting it.

use std::sync::Arc;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::paging::VirtFault;
use thiserror::Error;

/// Most actions of one probe.
pub const ACTIONS_MAX: usize = 16;

/// Most bytes that one action writes.
pub const WRITE_MAX: usize = 256;

/// One thing that a probe does at a hit that meets its conditions and its filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HitAction {
    /// Sets a register, before the instruction is executed.
    SetRegister {
        /// Which one.
        target: Target,
        /// What it becomes.
        value: u64,
    },
    /// At a function's entry: the function isn't executed, and its caller gets this value in RAX. At a return:
    /// the caller gets this value.
    Override {
        /// The value.
        value: u64,
    },
    /// Writes bytes to memory.
    WriteMemory {
        /// Where.
        at: Pointer,
        /// What; at most [`WRITE_MAX`] bytes.
        bytes: Arc<[u8]>,
    },
    /// Pauses the VM: no vCPU executes an instruction more than the hit needs.
    Pause,
}

impl HitAction {
    /// Returns true if the action changes the guest. A pause only takes time.
    pub fn changes_guest(&self) -> bool {
        !matches!(self, Self::Pause)
    }
}

/// A register that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A general register, by its number in instruction encodings, from 0 to 15.
    General(u8),
    /// RIP: execution goes on there, and the probed instruction isn't executed.
    Rip,
    /// The flags that arithmetic leaves, and DF. All other bits of RFLAGS stay as they are.
    Flags,
}

impl Target {
    /// Returns the target with a number: 16 is RFLAGS and 17 is RIP, those below are general
    /// registers.
    pub fn numbered(number: u8) -> Option<Self> {
        match number {
            0..16 => Some(Self::General(number)),
            16 => Some(Self::Flags),
            17 => Some(Self::Rip),
            _ => None,
        }
    }

    /// The number by which [`Self::numbered`] finds it.
    pub fn number(self) -> u8 {
        match self {
            Self::General(number) => number,
            Self::Flags => 16,
            Self::Rip => 17,
        }
    }
}

/// An address that is known at a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The general register whose value `offset` is added to; without one, `offset` is the address
    /// itself.
    pub register: Option<u8>,
    /// A distance in bytes, modulo 2^64.
    pub offset: u64,
}

/// Why an action of a probe is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ActionRefusal {
    /// More actions than [`ACTIONS_MAX`].
    #[error("a probe has at most {ACTIONS_MAX} actions, not {0}")]
    TooMany(usize),
    /// A write of no bytes, or of more than [`WRITE_MAX`].
    #[error("an action writes 1 to {WRITE_MAX} bytes, not {0}")]
    Bytes(usize),
    /// There is no such register.
    #[error("there is no register number {0}")]
    Register(u8),
    /// At another place than a function's entry.
    #[error(
        "only at a function's entry can the function be skipped: {0} bytes of it have been executed"
    )]
    NotEntry(u64),
    /// An action of a watchpoint other than a pause.
    #[error("a watchpoint can only pause the VM: what it watches has been accessed by then")]
    Watchpoint,
    /// An action of a return probe that sets RIP or RSP.
    #[error("a return probe can't set RIP or RSP: the function is just returning to its caller")]
    Returning,
}

/// Why an action that was to be done at a hit was not. The guest went on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ActionFailure {
    /// The memory can't be written, or read.
    #[error(transparent)]
    Memory(#[from] VirtFault),
    /// The page tables can't be read.
    #[error("the page tables of the vCPU can't be read")]
    NoPageTables,
    /// The memory is vmprobe's own.
    #[error("{at} is where vmprobe itself has changed the guest's text, or has memory of its own")]
    Ours {
        /// The first such address.
        at: GuestVirtAddr,
    },
    /// Nothing can be executed there.
    #[error("execution can't go on at {to}, which is no address of the guest's")]
    Rip {
        /// Where to.
        to: GuestVirtAddr,
    },
    /// The function ends before its caller is known.
    #[error("the function has jumped to another, which will return in its place")]
    TailCall,
}
