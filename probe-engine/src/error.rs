//! Why probes are refused.

use guest_kernel::symbols::LookupError;
use guest_state::{DebuggingError, GuestVirtAddr, MemoryError};
use thiserror::Error;

use crate::action::ActionRefusal;
use crate::probe::ProbeId;

/// Which probe of a batch was refused, and why; none of the batch was registered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{error}")]
pub struct BatchError {
    /// The probe's place in the batch, from 0; none where the batch as a whole was refused.
    pub index: Option<usize>,
    /// The reason.
    pub error: RegisterError,
}

impl From<RegisterError> for BatchError {
    fn from(error: RegisterError) -> Self {
        Self { index: None, error }
    }
}

impl From<BatchError> for RegisterError {
    fn from(refused: BatchError) -> Self {
        refused.error
    }
}

/// Why a probe was not registered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The symbol is unknown or ambiguous.
    #[error(transparent)]
    Symbol(#[from] LookupError),
    /// The guest has a kprobe of its own there.
    #[error(
        "{place} can't be probed: the guest has a kprobe of its own {how} (at {at}); remove that in the \
         guest, or probe another instruction"
    )]
    GuestKprobe {
        /// What was asked for.
        place: String,
        /// The instruction that the guest's kprobe is on.
        at: GuestVirtAddr,
        /// Where that is, seen from the probe.
        how: &'static str,
    },
    /// The guest may have read text for a kprobe of its own, which must not change before it is done.
    #[error("the guest is just changing kprobes of its own; try again")]
    KprobesChanging,
    /// Not in the kernel's text.
    #[error(
        "{place} ({address}) is not in the kernel's text; a probe goes on an instruction of the \
         kernel image"
    )]
    NotText {
        /// What was asked for.
        place: String,
        /// Its address.
        address: GuestVirtAddr,
    },
    /// The offset goes beyond the function.
    #[error("{place} is outside {symbol}, which is {size:#x} bytes long; give a smaller offset")]
    OutsideSymbol {
        /// What was asked for.
        place: String,
        /// The symbol's name.
        symbol: String,
        /// Bytes to the next symbol.
        size: u64,
    },
    /// The offset goes beyond the address space.
    #[error("{place} is beyond the end of the address space; give a smaller offset")]
    AddressOverflow {
        /// What was asked for.
        place: String,
    },
    /// Not where an instruction begins.
    #[error(
        "{place} is inside the instruction `{instruction}`, which begins at {start}; put the probe \
         there"
    )]
    InsideInstruction {
        /// What was asked for.
        place: String,
        /// Where the instruction begins.
        start: GuestVirtAddr,
        /// The instruction.
        instruction: String,
    },
    /// On `endbr64` or the site that ftrace patches.
    #[error(
        "{place} is on the function's {what}, which has to stay as it is: {why}; the first \
         instruction that can be probed is at {next}"
    )]
    ReservedEntry {
        /// What was asked for.
        place: String,
        /// What is there.
        what: &'static str,
        /// What it is for.
        why: String,
        /// The first address after it.
        next: GuestVirtAddr,
    },
    /// The function is nothing but its entry.
    #[error("{symbol} has no instruction after its entry; there is nothing to probe")]
    EmptyFunction {
        /// The symbol's name.
        symbol: String,
    },
    /// An instruction that raises an exception on purpose.
    #[error(
        "the instruction at {place} is `{instruction}`, by which the kernel itself recognizes the \
         place; probe the one before it or where it leads"
    )]
    Trap {
        /// What was asked for.
        place: String,
        /// The instruction.
        instruction: String,
    },
    /// The guest has a breakpoint of its own in the function.
    #[error(
        "the guest has a breakpoint of its own at {at}, so the instructions from there to {place} \
         can't be told apart; remove it (a kprobe, perf or a debugger in the guest) or probe the \
         function's entry"
    )]
    GuestBreakpoint {
        /// What was asked for.
        place: String,
        /// The guest's breakpoint.
        at: GuestVirtAddr,
    },
    /// Bytes that are no instruction.
    #[error(
        "cannot reach {place}: the bytes at {at} are no instruction ({bytes}); probe before it"
    )]
    Undecodable {
        /// What was asked for.
        place: String,
        /// Where decoding stopped.
        at: GuestVirtAddr,
        /// The bytes there, in hex.
        bytes: String,
    },
    /// An instruction that can't be executed under a probe.
    #[error(
        "the instruction at {place}, `{instruction}`, can't be probed: {why}; probe the one before \
         it"
    )]
    Unsupported {
        /// What was asked for.
        place: String,
        /// The instruction.
        instruction: String,
        /// What is special about it.
        why: &'static str,
    },
    /// Init text that has been freed.
    #[error(
        "{place} is in init text, which the kernel has freed after its start; register the probe \
         before the guest boots"
    )]
    InitTextFreed {
        /// What was asked for.
        place: String,
    },
    /// Text, but not of the loaded image.
    #[error(
        "{place} ({address}) is not part of the kernel image as loaded; check that the symbols \
         belong to this kernel"
    )]
    NotLoaded {
        /// What was asked for.
        place: String,
        /// Its address.
        address: GuestVirtAddr,
    },
    /// What the kernel patches itself or has ruled out.
    #[error("{place} can't be probed ({kind}): {reason}; probe an instruction before or after it")]
    Blacklisted {
        /// What was asked for.
        place: String,
        /// The kind of place, in one word.
        kind: &'static str,
        /// The reason in words.
        reason: String,
    },
    /// A return probe that isn't on a function's entry.
    #[error(
        "{place} is not the entry of {symbol}, where the return address is; put the return probe \
         on {symbol}"
    )]
    ReturnNotEntry {
        /// What was asked for.
        place: String,
        /// The function.
        symbol: String,
    },
    /// A return probe at the function's own returns that would not see all of them.
    #[error(
        "{place} can't be probed at its own returns: {why}; use a return probe without `rets`, which takes \
         the place of the return address"
    )]
    Exits {
        /// What was asked for.
        place: String,
        /// Which return, and why not.
        why: String,
    },
    /// More calls than can be followed.
    #[error(
        "a return probe follows at most {limit} calls at a time; ask for less than {wanted} on {place}"
    )]
    MaxActive {
        /// What was asked for.
        place: String,
        /// How many calls.
        wanted: u32,
        /// How many there can be.
        limit: u32,
    },
    /// Something that needs the arena.
    #[error(
        "{place} needs executable memory of ours in the guest, which can't be had: {why}; probe \
         the function's entry and its `ret` instructions instead"
    )]
    NoArena {
        /// What was asked for.
        place: String,
        /// Why there is none.
        why: String,
    },
    /// An action that can't be done there.
    #[error("{place} can't have such an action: {why}")]
    Action {
        /// What was asked for.
        place: String,
        /// Why not.
        why: ActionRefusal,
    },
    /// A length that debug registers don't have.
    #[error("a watchpoint is 1, 2, 4 or 8 bytes long, not {len} as for {place}")]
    WatchLength {
        /// What was asked for.
        place: String,
        /// The length in bytes.
        len: u8,
    },
    /// Data that isn't aligned.
    #[error(
        "{place} ({address}) is not aligned to {len} bytes, as a watchpoint of that length has to \
         be; watch a shorter or an aligned part"
    )]
    WatchAlignment {
        /// What was asked for.
        place: String,
        /// Its address.
        address: GuestVirtAddr,
        /// The length in bytes.
        len: u8,
    },
    /// Data of which every CPU has its own.
    #[error(
        "{place} is a per-CPU variable (at {offset:#x} of each CPU's area); give the address of \
         one CPU's copy"
    )]
    WatchPerCpu {
        /// What was asked for.
        place: String,
        /// Its offset in the per-CPU area.
        offset: u64,
    },
    /// Data of a module.
    #[error("{place} is in a module; give the address of the data while the module is loaded")]
    WatchModule {
        /// What was asked for.
        place: String,
    },
    /// There are only four debug registers.
    #[error(
        "no debug register is free for {place}: each vCPU has four; disable or remove another \
         watchpoint"
    )]
    NoDebugRegister {
        /// What was asked for.
        place: String,
    },
    /// Modules can't be found in this guest.
    #[error("modules of this kernel can't be probed: {why}; probe the kernel's own functions")]
    NoModules {
        /// Why not.
        why: String,
    },
    /// A loaded module has no such function.
    #[error(
        "the guest's module {module} has no function {symbol:?}; it may be inlined or in init text \
         that was freed"
    )]
    NotInModule {
        /// The module.
        module: String,
        /// The function.
        symbol: String,
    },
    /// Several functions of a module have the name.
    #[error(
        "{} functions are called {place}; give one of their addresses instead: {addresses:?}",
        .addresses.len()
    )]
    AmbiguousInModule {
        /// What was asked for.
        place: String,
        /// Their addresses.
        addresses: Vec<GuestVirtAddr>,
    },
    /// A loaded module can't be read.
    #[error("cannot read the guest's module {module}: {why}; try again, or unload and load it")]
    Module {
        /// The module.
        module: String,
        /// What is wrong.
        why: String,
    },
    /// There is a probe of that name at that place.
    #[error(
        "there already is a probe {name:?} (number {id}, at {address}); remove it or give the new \
         one another name"
    )]
    AlreadyExists {
        /// The name.
        name: String,
        /// The probe that has it.
        id: ProbeId,
        /// Where that one is.
        address: GuestVirtAddr,
    },
    /// Two probes of the batch have the same name and the same place.
    #[error(
        "the request has a probe {name:?} twice at one place; leave one out or give it another name"
    )]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A probe can't have the name of probes of another kind.
    #[error(
        "there are probes {name:?} of another kind, and probes of one name are one event: give the new one another \
         name"
    )]
    OtherKind {
        /// The name.
        name: String,
    },
    /// A name that can't be shown or typed.
    #[error(
        "{name:?} can't be the name of a probe; use 1 to 128 characters, none of them white space \
         or a control character"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// Guest memory can't be accessed.
    #[error("cannot access the guest's text; check that the VM is still running")]
    Memory(#[from] MemoryError),
    /// The monitor can't have the vCPUs debugged as the probes need it.
    #[error(transparent)]
    Debugging(#[from] DebuggingError),
}

/// Why a batch of probes was not changed or removed; none of it was.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The guest has a kprobe of its own there.
    #[error(
        "{address} can't be armed: the guest has a kprobe of its own {how} (at {at}); remove that in the \
         guest, or the probe"
    )]
    GuestKprobe {
        /// The probe's instruction.
        address: GuestVirtAddr,
        /// The instruction that the guest's kprobe is on.
        at: GuestVirtAddr,
        /// Where that is, seen from the probe.
        how: &'static str,
    },
    /// The guest may have read text for a kprobe of its own, which must not change before it is done.
    #[error("the guest is just changing kprobes of its own; try again")]
    KprobesChanging,
    /// There is no such probe.
    #[error("there is no probe number {id}; it may have been removed already: list the probes")]
    UnknownProbe {
        /// The number.
        id: ProbeId,
    },
    /// There are only four debug registers.
    #[error(
        "no debug register is free for {place}: each vCPU has four; disable or remove another \
         watchpoint"
    )]
    NoDebugRegister {
        /// What was asked for.
        place: String,
    },
    /// Guest memory can't be accessed.
    #[error("cannot access the guest's text; check that the VM is still running")]
    Memory(#[from] MemoryError),
    /// The monitor can't have the vCPUs debugged as the probes need it.
    #[error(transparent)]
    Debugging(#[from] DebuggingError),
}

impl ChangeError {
    /// Makes the error of a failure to choose debug registers.
    pub(crate) fn from_watch(error: NoDebugRegister) -> Self {
        let NoDebugRegister { place } = error;
        Self::NoDebugRegister { place }
    }
}

/// There are only four debug registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoDebugRegister {
    pub(crate) place: String,
}

impl From<NoDebugRegister> for RegisterError {
    fn from(error: NoDebugRegister) -> Self {
        let NoDebugRegister { place } = error;
        Self::NoDebugRegister { place }
    }
}
