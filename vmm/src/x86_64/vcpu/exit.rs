//! KVM's exits that belong to debugging: debug exits and internal errors.

use guest_state::x86_64::{MAX_INSTRUCTION_LEN, vector};
use kvm_bindings::{kvm_debug_exit_arch, kvm_run};

/// The exit with which a KVM reports an int3. It also decides how one is reinjected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakpointExit {
    /// `KVM_EXIT_DEBUG`: an exception intercept. Where the monitor doesn't deliver
    /// it itself, `KVM_GUESTDBG_INJECT_BP` with RIP at the int3 reinjects it.
    DebugExit,
    /// `KVM_EXIT_INTERNAL_ERROR`: a KVM that emulates kernel-mode code and has
    /// no int3 in its emulator. It takes an injected exception as it is, so RIP
    /// must stand after the int3.
    EmulationFailure,
}

/// Bytes of an int3.
pub(crate) const INT3_LEN: u64 = 1;

/// The exception in a `KVM_EXIT_DEBUG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebugExit {
    /// An int3.
    Breakpoint {
        /// Its linear address.
        at: u64,
    },
    /// A debug exception, #DB.
    Debug {
        /// DR6 after the exception.
        dr6: u64,
    },
}

impl DebugExit {
    /// Returns None for an exception that no debugging causes.
    pub(crate) fn new(exit: &kvm_debug_exit_arch) -> Option<Self> {
        match u8::try_from(exit.exception) {
            Ok(vector::BREAKPOINT) => Some(Self::Breakpoint { at: exit.pc }),
            Ok(vector::DEBUG) => Some(Self::Debug { dr6: exit.dr6 }),
            _ => None,
        }
    }
}

/// The contents of a `KVM_EXIT_INTERNAL_ERROR`. Where KVM emulates kernel-mode code, each int3 causes this exit, so
/// reading the error allocates nothing on the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InternalError {
    /// `KVM_INTERNAL_ERROR_*` of include/uapi/linux/kvm.h.
    pub suberror: u32,
    /// How many bytes the instruction has, and the bytes; all zero where KVM doesn't give them.
    counted: [[u8; 8]; 3],
}

impl InternalError {
    /// `KVM_INTERNAL_ERROR_EMULATION`.
    pub(crate) const EMULATION: u32 = 1;

    /// Reads the error from the vCPU's `kvm_run` after such an exit.
    pub(crate) fn from_run(run: &kvm_run) -> Self {
        // SAFETY: the exit reason was KVM_EXIT_INTERNAL_ERROR, for which KVM
        // fills this member of the union; any bytes are valid for its integers.
        let internal = unsafe { &run.__bindgen_anon_1.internal };
        let suberror = internal.suberror;
        // `emulation_failure` of the same union: data[0] is a flag word whose bit 0
        // says that instruction bytes follow: their count, then the bytes.
        let [flags, words @ ..] = internal.data;
        let flagged = internal.ndata >= 4 && flags & 1 != 0;
        let counted = match words {
            [a, b, c, ..] if suberror == Self::EMULATION && flagged => [a, b, c],
            _ => [0; 3],
        };
        Self {
            suberror,
            counted: counted.map(u64::to_le_bytes),
        }
    }

    /// The instruction bytes at RIP, where KVM gives them.
    pub(crate) fn instruction(&self) -> &[u8] {
        let [count, bytes @ ..] = self.counted.as_flattened() else {
            return &[];
        };
        let count = usize::from(*count).min(MAX_INSTRUCTION_LEN);
        &bytes[..count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_exits_are_told_apart() {
        let cases = [
            (3, 0, Some(DebugExit::Breakpoint { at: 0x1000 })),
            (1, 0xffff_0ff2, Some(DebugExit::Debug { dr6: 0xffff_0ff2 })),
            (6, 0, None),
        ];
        for (exception, dr6, expected) in cases {
            let exit = kvm_debug_exit_arch {
                exception,
                dr6,
                pc: 0x1000,
                ..Default::default()
            };
            assert_eq!(DebugExit::new(&exit), expected);
        }
    }

    #[test]
    fn an_emulation_failure_tells_its_instruction() {
        let counted = |count| u64::from_le_bytes([count, 0xf3, 0x0f, 0xb8, 1, 2, 3, 4]);
        let all = [
            0xf3, 0x0f, 0xb8, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ];
        for (flags, ndata, count, instruction) in [
            (1, 4, 3, &all[..3]),
            // More than an instruction can have.
            (1, 4, 0xff, &all),
            (0, 4, 3, &[]),
            (1, 1, 3, &[]),
        ] {
            let mut run = kvm_run::default();
            let mut internal = kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_13 {
                suberror: 1,
                ndata,
                data: [u64::MAX; 16],
            };
            (internal.data[0], internal.data[1]) = (flags, counted(count));
            run.__bindgen_anon_1.internal = internal;
            let error = InternalError::from_run(&run);
            assert_eq!(error.instruction(), instruction);
        }
    }
}
