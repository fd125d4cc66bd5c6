//! Probes as their users ask for them and see them.

use std::fmt;

use crate::addr::{GuestVirtAddr, ProbeId};

/// Where a probe goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Relative to a symbol. Offset 0 is the function's first instruction after
    /// `endbr64` and the ftrace site; any other offset is meant as it is.
    Symbol {
        /// The symbol's name.
        name: String,
        /// Bytes from its address.
        offset: u64,
    },
    /// At this address.
    Address(GuestVirtAddr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol { name, offset: 0 } => f.write_str(name),
            Self::Symbol { name, offset } => write!(f, "{name}+{offset:#x}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// A probe to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    /// Its name, unique in the VM. By default `SYMBOL+0xOFFSET` as placed, or
    /// `0xADDRESS` for a probe by address.
    pub name: Option<String>,
    /// Where it goes.
    pub place: Place,
}

/// How the probed instruction is executed at a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// By the engine. Where it can't (memory that isn't RAM, an address that
    /// isn't canonical), that one hit is stepped.
    Emulate,
    /// By the CPU, in place, with all other vCPUs stopped.
    Step,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulate => "emulate",
            Self::Step => "step",
        })
    }
}

/// Whether a probe can be hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeState {
    /// Its breakpoint is in place.
    Armed,
    /// The kernel has freed the memory it was in (`.init.text`).
    Gone,
}

impl fmt::Display for ProbeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Armed => "armed",
            Self::Gone => "gone",
        })
    }
}

/// A registered probe at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeInfo {
    /// Its number, never used again.
    pub id: ProbeId,
    /// Its name.
    pub name: String,
    /// The probed instruction.
    pub address: GuestVirtAddr,
    /// The function it is in, by the name it was asked for.
    pub symbol: String,
    /// Bytes from that symbol.
    pub offset: u64,
    /// The probed instruction in AT&T syntax.
    pub instruction: String,
    /// How it is executed.
    pub strategy: Strategy,
    /// Why so.
    pub reason: String,
    /// How often it was hit. An execution that page-faults and is repeated
    /// counts each time, as with the kernel's own kprobes.
    pub hits: u64,
    /// Hits that were noticed but not reported.
    pub missed: u64,
    /// Whether it can be hit.
    pub state: ProbeState,
}
