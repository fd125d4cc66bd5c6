//! Traps: why a vCPU stopped for its debugger, in the same terms on every KVM, and what it does next.

use std::time::Instant;

use crate::addr::{GuestVirtAddr, VcpuId};
use crate::memory::GuestMemory;
use crate::vcpu::Vcpu;
use crate::x86_64::DEBUG_REGISTERS;

/// Why a vCPU stopped for its debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// An int3. RIP is the address of the int3 itself.
    Breakpoint,
    /// Watched data was accessed. RIP is behind the instruction that did it, or at the instruction whose
    /// execution is watched for ([`crate::Access::Execute`]). The action is to be [`Action::Resume`].
    ///
    /// A step whose instruction accesses watched data makes two traps: the step's end, whose action counts, and then
    /// this one, whose action doesn't.
    Watchpoint(WatchpointSet),
    /// The step under way is over.
    Step(StepEnd),
    /// The vCPU, which [`Action::Hold`] has stopped, need not stand still any more. Its registers are as they were
    /// left, or as the debugger has set them meanwhile.
    Released,
    /// A debugger wants the vCPU to execute one instruction of the guest's while all others stand still. The vCPU is
    /// about to enter guest mode for that, and stands still again when an answer calls [`Vcpu::pause_guest`]. It isn't
    /// halted any more.
    StepWanted,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// The instruction is done, or one round of a repeated string instruction: then RIP is where it was. A step with
    /// [`Step::run_to`] also ends so when it has come there.
    Done,
    /// The instruction raised the exception of this vector. RIP is at the first instruction of its
    /// [`ExceptionHandler`], and its frame is on the stack (SDM vol. 3, 6.14.2), the flags in it with TF
    /// set where the processor did the step.
    Exception(u8),
    /// The step is given up: its time limit of half a second has passed, and RIP is neither at its instruction nor at
    /// one of its handlers. Its instruction raised another exception. The vCPU may have executed any amount of the
    /// guest's code since, and the frame of that exception, wherever it is, may have TF in its flags: the guest then
    /// gets a single step when it returns from there.
    ///
    /// On a KVM that emulates kernel-mode code such a step ends as [`StepEnd::Done`] instead, behind the
    /// first instruction of the exception's handler.
    Astray,
}

/// Some of the watchpoints that are set, by their places in [`crate::Debugging::watchpoints`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchpointSet(u8);

impl WatchpointSet {
    /// The watchpoints whose bits are set, bit 0 for the first.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns true if the watchpoint at this place is one of them.
    pub const fn contains(self, index: usize) -> bool {
        index < DEBUG_REGISTERS && self.0 >> index & 1 == 1
    }
}

/// What a trapped vCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The vCPU resumes with its registers as they are now.
    Resume,
    /// The exception is the guest's own: the guest's handler gets it.
    Reinject,
    /// The vCPU executes the one instruction at RIP, with interrupts held back, until [`Trap::Step`].
    ///
    /// The step continues when the vCPU is stopped in between. A [`Trap::Breakpoint`] or a [`Trap::Watchpoint`] on the
    /// way leaves the step as it is, whatever the action. Such a trap can come when the instruction raises an
    /// exception that isn't among the handlers. Only another `Step` takes the place of the first, which then ends with
    /// no trap of its own. [`Vcpu::step_under_way`] tells which step is under way.
    ///
    /// The guest's own debug registers don't work while a step needs some, and its own trap flag (TF), where
    /// it is set, is lost by the step.
    Step(Step),
    /// The vCPU takes a page fault at RIP.
    PageFault {
        /// What the guest finds in CR2.
        address: GuestVirtAddr,
        /// The exception's error code (SDM vol. 3, 4.7).
        error_code: u32,
    },
    /// The vCPU stands still, out of guest mode, as long as [`TrapHandler::held_until`] says; then comes
    /// [`Trap::Released`]. The other vCPUs may meanwhile run, be stopped, be paused, or end. `Hold` may only answer a
    /// [`Trap::Breakpoint`] or a [`Trap::Released`] while no step is under way.
    Hold,
    /// The vCPU, whose RIP is behind the `hlt`, halts until the next interrupt. Its interrupt shadow ends.
    Halt,
}

/// A requested single step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// All other vCPUs stand still from before [`TrapHandler::before_step`] until the step's end.
    pub alone: bool,
    /// For a repeated string instruction, whose rounds are single steps otherwise: RIP when it is done. The vCPU runs
    /// until it comes there. If no debug register is left for this address, the rounds are stepped.
    pub run_to: Option<GuestVirtAddr>,
    /// Where to notice exceptions of the instruction. Where too few debug registers are left beside
    /// watchpoints and `run_to`, the last handlers get none, and the time limit ends a step that leads
    /// there.
    pub handlers: [Option<ExceptionHandler>; DEBUG_REGISTERS],
}

/// The guest's handler of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceptionHandler {
    /// The exception (SDM vol. 3, table 6-1).
    pub vector: u8,
    /// The handler's first instruction.
    pub entry: GuestVirtAddr,
}

/// Decides about traps. Called on the vCPU's own thread, for several vCPUs at once.
pub trait TrapHandler: Send + Sync {
    /// Decides about a trap. At the end of a step with [`Step::alone`] all other vCPUs still stand still; they go on
    /// after the answer unless it is one more such step.
    fn trap(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory, trap: Trap) -> Action;

    /// The address in this process's memory that the answer to an int3 at `rip` is likely to read first; `None` if the
    /// handler doesn't know it. The monitor asks as soon as a vCPU has come to an int3, and prefetches from the
    /// address while it makes the trap. A prefetch isn't a read, so nothing need be mapped there any more.
    fn first_look(&self, rip: GuestVirtAddr) -> Option<usize> {
        let _nobody_knows = rip;
        None
    }

    /// The time until which a vCPU stands still that [`Action::Hold`] has stopped; `None` if it may go on. The monitor
    /// asks when it is told to look again, and at the time of the last answer. It holds a lock meanwhile: this
    /// function must be quick, and call nothing of the monitor.
    fn held_until(&self, vcpu: VcpuId) -> Option<Instant> {
        let _nobody_is_held = vcpu;
        None
    }

    /// Called when all other vCPUs are out of guest mode and the requested step with [`Step::alone`] can begin.
    /// Returns false to call it off: the vCPU then resumes.
    fn before_step(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory) -> bool;
}
