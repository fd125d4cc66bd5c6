//! Probes as their users ask for them and see them.

use std::fmt;
use std::sync::Arc;

use guest_state::{Access, GuestVirtAddr};

use crate::action::HitAction;
use crate::condition::Comparison;
use crate::fetch::Fetches;
use crate::filter::Filter;
use crate::value::Values;

mod no_jump;

pub use no_jump::NoJump;

/// Most calls that a return probe follows at a time, as in the kernel (`KRETPROBE_MAXACTIVE_MAX` of
/// `kernel/trace/trace_probe.h`).
pub const MAXACTIVE_MAX: u32 = 4096;

/// Names one probe, for as long as the engine lives; never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ProbeId(pub u64);

impl fmt::Display for ProbeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where a probe goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// Relative to a symbol. Offset 0 of a function is its first instruction after
    /// `endbr64` and the ftrace site; any other offset is meant as it is.
    Symbol {
        /// The module that has it, if it isn't the kernel's.
        module: Option<String>,
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
            Self::Symbol {
                module,
                name,
                offset,
            } => {
                if let Some(module) = module {
                    write!(f, "{module}:")?;
                }
                f.write_str(name)?;
                match offset {
                    0 => Ok(()),
                    offset => write!(f, "+{offset:#x}"),
                }
            }
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// What a probe waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    /// The execution of an instruction.
    Instruction {
        /// An event after it, too.
        post: bool,
        /// An event when it raises an exception, too.
        fault: bool,
    },
    /// The return of a function.
    Return {
        /// How many calls are followed at a time; by default 10, or twice the number of vCPUs if
        /// that is more.
        maxactive: Option<u32>,
    },
    /// The return of a function, by breakpoints at its own `ret`s and the jumps out of it: the return
    /// address on the stack stays the guest's own.
    Exits {
        /// As of [`Self::Return`].
        maxactive: Option<u32>,
    },
    /// An access to data, by the debug registers.
    Watch {
        /// 1, 2, 4 or 8 bytes, and aligned to as many.
        len: u8,
        /// What counts.
        access: Access,
    },
}

impl ProbeKind {
    /// An instruction's event before it is executed.
    pub const PRE: Self = Self::Instruction {
        post: false,
        fault: false,
    };
}

/// What a hit leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capture {
    /// An event with these values; the others are 0 in it.
    Event(Fetches),
    /// No event: it is only counted.
    Count,
}

impl Capture {
    /// An event with all registers.
    pub const FULL: Self = Self::Event(Fetches::ALL);

    /// What an event has; `None` when there is no event.
    pub fn fetches(self) -> Option<Fetches> {
        match self {
            Self::Event(fetches) => Some(fetches),
            Self::Count => None,
        }
    }

    /// Returns what two probes want of one hit.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self.fetches(), other.fetches()) {
            (None, None) => Self::Count,
            (one, other) => {
                let (one, other) = (one.unwrap_or_default(), other.unwrap_or_default());
                Self::Event(one.and(other))
            }
        }
    }
}

/// What a probe's hits are used for, and how the probe may get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What a hit leaves behind.
    pub capture: Capture,
    /// A hit counts only if it meets all of these.
    pub condition: Vec<Comparison>,
    /// Values that an event has besides registers.
    pub values: Values,
    /// A hit counts only if it meets this, too.
    pub filter: Option<Arc<Filter>>,
    /// Whether an event tells of the current task.
    pub context: bool,
    /// Most return addresses of the task's stack that an event has.
    pub stack: u32,
    /// A vCPU whose ring is full waits, instead of losing its record.
    pub lossless: bool,
    /// Whether the probe may become a jump.
    pub optimize: bool,
    /// What is done to the guest at a hit that counts, in this order. Such a probe is never a jump.
    pub actions: Arc<[HitAction]>,
}

impl Options {
    /// Returns true if a hit needs nothing but registers and the context, and nothing is done at it.
    pub(crate) fn are_plain(&self) -> bool {
        let Self {
            capture: _,
            condition,
            values,
            filter,
            context: _,
            stack,
            lossless: _,
            optimize: _,
            actions,
        } = self;
        condition.is_empty()
            && values.is_empty()
            && filter.is_none()
            && *stack == 0
            && actions.is_empty()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            capture: Capture::FULL,
            condition: Vec::new(),
            values: Values::default(),
            filter: None,
            context: false,
            stack: 0,
            lossless: false,
            optimize: true,
            actions: Arc::default(),
        }
    }
}

/// What can be switched, of some probes or of all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// Whether hits are noticed.
    Enabled(bool),
    /// Whether probes may become jumps. Becoming one comes later, in the background.
    Optimize(bool),
    /// Whether a client is asked at each hit what to do. Such a probe is never a jump.
    Attended(bool),
}

/// Whether a probe is a jump, which costs no exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Optimization {
    /// It is.
    Optimized,
    /// It will be, or it will be known why not.
    Waiting,
    /// It stays a breakpoint.
    Not(NoJump),
}

/// A probe to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    /// Its name, unique in the VM. By default `SYMBOL+0xOFFSET` as placed, with `MODULE:` before
    /// and `%return` behind it where that applies, or `0xADDRESS` for a probe by address.
    pub name: Option<String>,
    /// Where it goes.
    pub place: Place,
    /// What it waits for.
    pub kind: ProbeKind,
    /// Whether it is armed at once.
    pub enabled: bool,
    /// What its hits are used for, and how it may get them.
    pub options: Options,
}

/// How the probed instruction is executed at a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// By the engine: one exit. Where it can't (memory that isn't RAM, an address that isn't
    /// canonical), that one hit is stepped.
    Emulate,
    /// By the CPU, in a copy that jumps back: one exit.
    Boost,
    /// By the CPU, alone: a second exit tells that it is done.
    Step,
    /// No instruction is executed: a debug register watches data.
    Watch,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulate => "emulate",
            Self::Boost => "boost",
            Self::Step => "step",
            Self::Watch => "watch",
        })
    }
}

/// Whether a probe can be hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeState {
    /// It is enabled; armed unless all are disarmed.
    Armed,
    /// It is disabled.
    Disabled,
    /// The memory it was in was freed: the kernel's init text, or its module's.
    Gone,
    /// Its module has not been loaded yet.
    Pending,
}

impl fmt::Display for ProbeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Armed => "armed",
            Self::Disabled => "disabled",
            Self::Gone => "gone",
            Self::Pending => "pending",
        })
    }
}

/// How often a probe was hit so far: the counts of [`ProbeInfo`] of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCounts {
    /// The probe.
    pub id: ProbeId,
    /// Hits.
    pub hits: u64,
    /// Calls that a return probe did not follow.
    pub missed: u64,
    /// Calls of a return probe's function that never return.
    pub ended: u64,
}

/// A registered probe at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeInfo {
    /// Its number, never used again.
    pub id: ProbeId,
    /// Its name.
    pub name: String,
    /// What it waits for.
    pub kind: ProbeKind,
    /// The probed instruction, or the watched data; 0 while its module isn't loaded.
    pub address: GuestVirtAddr,
    /// The module it is in, if it isn't the kernel.
    pub module: Option<String>,
    /// The function it is in, by the name it was asked for.
    pub symbol: String,
    /// Bytes from that symbol.
    pub offset: u64,
    /// The probed instruction in AT&T syntax.
    pub instruction: String,
    /// How it is executed.
    pub strategy: Strategy,
    /// Why the probe has this strategy.
    pub reason: String,
    /// How often it was hit. An execution that page-faults and is repeated
    /// counts each time, as with the kernel's own kprobes.
    pub hits: u64,
    /// Hits that were noticed but not reported, and calls that a return probe didn't follow to their end.
    pub missed: u64,
    /// Calls of a return probe's function that never return, as their task, or the guest, has ended inside.
    /// With [`Self::hits`] and [`Self::missed`], and the calls under way, these are all calls.
    pub ended: u64,
    /// How often a vCPU left guest mode for it.
    pub exits: u64,
    /// The exits that no hit made: a task stood behind the probed instruction when a jump was put over it, or jumped
    /// there, and came to an int3 in the jump's displacement.
    pub trips: u64,
    /// How many of its actions were done, with those that an answer to one of its hits asked for.
    pub actions: u64,
    /// How many actions were to be done and were not.
    pub failed_actions: u64,
    /// Why the last failed action was not done; empty where there is none.
    pub action_failure: String,
    /// Whether a client is asked at each hit what to do.
    pub attended: bool,
    /// Whether it can be hit.
    pub state: ProbeState,
    /// The options that it was registered with.
    pub options: Options,
    /// Whether it is a jump now.
    pub optimization: Optimization,
}
