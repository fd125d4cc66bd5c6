//! What stops a vCPU for a debugger's reason, told the same way whatever KVM
//! is below, and what is to be done then.

use kvm_bindings::{kvm_debug_exit_arch, kvm_run};

use crate::{ram::GuestRam, vcpu::VcpuContext, watch::DEBUG_REGISTERS};

/// Guest virtual addresses where the exceptions of a stepped instruction lead:
/// the entry points of the guest's exception handlers.
pub type Handlers = [Option<u64>; DEBUG_REGISTERS];

/// A debug event of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// An int3. RIP is the address of the int3 itself.
    Breakpoint,
    /// One instruction was executed by a [`Verdict::Step`], which is over. Of a
    /// repeated string instruction it was one round, and RIP is where it was.
    Step,
    /// A debug register matched. Bits 3:0 of DR6 say which (SDM vol. 3, 17.2.3),
    /// no other than those that the monitor set:
    /// - bit n below the number of watchpoints: that watchpoint was hit. RIP is
    ///   after the instruction that did it. The verdict is to be
    ///   [`Verdict::Resume`].
    /// - a bit from there on: RIP is at one of the [`Handlers`] of the step under
    ///   way, which is over. The instruction stepped raised that exception, and its
    ///   frame is on the stack (SDM vol. 3, 6.14.2), its flags with TF set where
    ///   the processor did the step.
    ///
    /// The instruction of a step that hits a watchpoint makes two traps: `Step`,
    /// whose verdict counts, and then this one, whose verdict doesn't.
    Hardware {
        /// DR6 as the exception left it.
        dr6: u64,
    },
    /// The step under way is given up: it has had its time, half a second, and RIP
    /// is elsewhere, but at none of its handlers. Its instruction raised another
    /// exception. The vCPU may have executed any amount of the guest's code since,
    /// and the frame of that exception, wherever it is, may have TF in its flags:
    /// a single step that the guest gets when it returns from there.
    /// On a KVM that emulates kernel-mode code such a step ends as [`Trap::Step`]
    /// instead, after the first instruction of the exception's handler.
    StepAstray,
}

/// What becomes of a trapped vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on with its registers as they are now.
    Resume,
    /// The trap is the guest's own: its exception handler gets it.
    GiveBack,
    /// It executes the one instruction at RIP, with interrupts held back. The step
    /// ends with [`Trap::Step`], with [`Trap::Hardware`] at one of `handlers`, or
    /// with [`Trap::StepAstray`].
    ///
    /// It goes on when the vCPU is stopped in between. A [`Trap::Breakpoint`] or a
    /// watchpoint's hit on the way (an exception of the instruction that isn't
    /// among `handlers` leads to such) leaves the step as it is, whatever the
    /// verdict, but for another `Step`: that takes its place, and the first one
    /// ends with no trap of its own. [`VcpuContext::step_under_way`] tells.
    ///
    /// The guest's own debug registers don't work while `handlers` are set, and its
    /// own trap flag (TF), where it is set, is lost by the step.
    Step {
        /// All other vCPUs stand still from before [`TrapHandler::before_step`]
        /// until the step's end.
        alone: bool,
        /// Not one instruction but all until one of `handlers` is reached: for a
        /// repeated string instruction, whose rounds are single steps otherwise. The
        /// first of `handlers` is then to be where the instruction leads when it is
        /// done, and a debug register has to be left for it.
        through: bool,
        /// Where to notice exceptions of the instruction. Watchpoints need debug
        /// registers, too: where too few are left, the last handlers get none, and
        /// the time limit ends a step that leads there.
        handlers: Handlers,
    },
    /// It takes a page fault at RIP.
    PageFault {
        /// What the guest finds in CR2.
        address: u64,
        /// The exception's error code (SDM vol. 3, 4.7).
        error_code: u32,
    },
    /// It halts until the next interrupt, RIP being past the `hlt`.
    Halt,
}

/// Who decides about traps. Called on the vCPU's own thread, for several vCPUs
/// at once.
pub trait TrapHandler: Send + Sync {
    /// Decides about a trap. At the end of a step alone all other vCPUs still stand
    /// still; they go on after it unless the verdict is one more such step.
    fn trap(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam, trap: Trap) -> Verdict;

    /// All other vCPUs are out of guest mode and the step alone that was asked for
    /// can begin. False calls it off: the vCPU then resumes.
    fn before_step(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam) -> bool;
}

/// How a KVM reports an int3, which also decides how one is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakpointShape {
    /// `KVM_EXIT_DEBUG`: an exception intercept. Where the monitor doesn't deliver
    /// it itself, `KVM_GUESTDBG_INJECT_BP` with RIP at the int3 gives it back.
    DebugExit,
    /// `KVM_EXIT_INTERNAL_ERROR`: a KVM that emulates kernel-mode code and has
    /// no int3 in its emulator. It takes an injected exception as it is, so RIP
    /// must stand after the int3.
    EmulationFailure,
}

/// Exception vectors (SDM vol. 3, 6.3.1).
const VECTOR_DEBUG: u32 = 1;
const VECTOR_BREAKPOINT: u32 = 3;
/// The breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;
/// Its length in bytes.
pub(crate) const INT3_LEN: u64 = 1;

/// The exception in a `KVM_EXIT_DEBUG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebugExit {
    /// An int3.
    Breakpoint,
    /// A debug exception, #DB.
    Debug {
        /// DR6 as it left it.
        dr6: u64,
    },
}

impl DebugExit {
    /// None for an exception that no debugging is the reason of.
    pub(crate) fn new(exit: &kvm_debug_exit_arch) -> Option<Self> {
        match exit.exception {
            VECTOR_BREAKPOINT => Some(Self::Breakpoint),
            VECTOR_DEBUG => Some(Self::Debug { dr6: exit.dr6 }),
            _ => None,
        }
    }
}

/// What a `KVM_EXIT_INTERNAL_ERROR` says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InternalError {
    /// `KVM_INTERNAL_ERROR_*` of include/uapi/linux/kvm.h.
    pub suberror: u32,
    /// The instruction bytes at RIP where KVM gives them.
    pub instruction: Vec<u8>,
}

impl InternalError {
    /// Reads it from the vCPU's `kvm_run` after such an exit.
    pub(crate) fn from_run(run: &kvm_run) -> Self {
        // SAFETY: the exit reason was KVM_EXIT_INTERNAL_ERROR, for which KVM
        // fills this member of the union; any bytes are valid for its integers.
        let internal = unsafe { run.__bindgen_anon_1.internal };
        let mut error = Self {
            suberror: internal.suberror,
            instruction: Vec::new(),
        };
        // `emulation_failure` of the same union: data[0] is a flag word whose bit 0
        // says that instruction bytes follow: their count, then the bytes.
        let flagged = internal.ndata >= 4 && internal.data[0] & 1 != 0;
        if error.suberror == Self::EMULATION && flagged {
            let raw: Vec<u8> = internal.data[1..4]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
            let count = usize::from(raw[0]).min(15);
            error.instruction = raw[1..=count].to_vec();
        }
        error
    }

    /// `KVM_INTERNAL_ERROR_EMULATION`.
    pub(crate) const EMULATION: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_exits_are_told_apart() {
        let cases = [
            (3, 0, Some(DebugExit::Breakpoint)),
            (1, 0xffff_0ff2, Some(DebugExit::Debug { dr6: 0xffff_0ff2 })),
            (6, 0, None),
        ];
        for (exception, dr6, expected) in cases {
            let exit = kvm_debug_exit_arch {
                exception,
                dr6,
                ..Default::default()
            };
            assert_eq!(DebugExit::new(&exit), expected);
        }
    }

    #[test]
    fn an_emulation_failure_tells_its_instruction() {
        let mut run = kvm_run::default();
        let mut internal = kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_13 {
            suberror: 1,
            ndata: 4,
            data: [0; 16],
        };
        internal.data[0] = 1;
        internal.data[1] = u64::from_le_bytes([3, 0xf3, 0x0f, 0xb8, 0, 0, 0, 0]);
        run.__bindgen_anon_1.internal = internal;
        let error = InternalError::from_run(&run);
        assert_eq!(error.instruction, [0xf3, 0x0f, 0xb8]);
    }
}
