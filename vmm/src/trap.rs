//! What stops a vCPU for a debugger's reason, told the same way whatever KVM
//! is below, and what is to be done then.

use kvm_bindings::{kvm_debug_exit_arch, kvm_run};

use crate::{ram::GuestRam, vcpu::VcpuContext};

/// A debug event of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// An int3. RIP is the address of the int3 itself.
    Breakpoint,
    /// One instruction was executed under single step.
    Step,
    /// A debug register matched. DR6 says which (SDM vol. 3, 17.2.3).
    Hardware {
        /// DR6 as the exception left it.
        dr6: u64,
    },
}

/// What becomes of a trapped vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on with its registers as they are now.
    Resume,
    /// The trap is the guest's own: its exception handler gets it.
    GiveBack,
    /// It executes one instruction while all other vCPUs stand still; see
    /// [`TrapHandler::before_step`].
    StepAlone,
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
    /// Decides about a trap. After a step that this handler asked for, the trap
    /// is [`Trap::Step`] and all other vCPUs still stand still.
    fn trap(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam, trap: Trap) -> Verdict;

    /// All other vCPUs are out of guest mode and the step asked for can begin.
    /// False calls it off: the vCPU then resumes.
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
/// `BS` of DR6: the trap is a single step (SDM vol. 3, 17.2.3).
const DR6_SINGLE_STEP: u64 = 1 << 14;
/// The breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;
/// Its length in bytes.
pub(crate) const INT3_LEN: u64 = 1;

/// The trap in a `KVM_EXIT_DEBUG`.
pub(crate) fn from_debug_exit(exit: &kvm_debug_exit_arch) -> Option<Trap> {
    match exit.exception {
        VECTOR_BREAKPOINT => Some(Trap::Breakpoint),
        VECTOR_DEBUG if exit.dr6 & DR6_SINGLE_STEP != 0 => Some(Trap::Step),
        VECTOR_DEBUG => Some(Trap::Hardware { dr6: exit.dr6 }),
        _ => None,
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
            (3, 0, Some(Trap::Breakpoint)),
            (1, 0xffff_4ff0, Some(Trap::Step)),
            (1, 0xffff_0ff2, Some(Trap::Hardware { dr6: 0xffff_0ff2 })),
            (6, 0, None),
        ];
        for (exception, dr6, trap) in cases {
            let exit = kvm_debug_exit_arch {
                exception,
                dr6,
                ..Default::default()
            };
            assert_eq!(from_debug_exit(&exit), trap);
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
