//! What an argument of a system call has to be.

use std::process;

use libc::{
    CLONE_CHILD_CLEARTID, CLONE_FILES, CLONE_FS, CLONE_PARENT_SETTID, CLONE_SETTLS, CLONE_SIGHAND,
    CLONE_SYSVSEM, CLONE_THREAD, CLONE_VM,
};
use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};

/// A condition on the lower 32 bits of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Condition {
    /// The number of the argument, from 0.
    argument: u8,
    is: Is,
}

/// What these bits are.
#[derive(Clone, Copy, Debug)]
enum Is {
    Equal(u32),
    /// The bits of the mask are these.
    Masked {
        mask: u32,
        bits: u32,
    },
    ThisProcess,
}

impl Condition {
    /// An ioctl(2) of KVM's: its type is `KVMIO` (`include/uapi/linux/kvm.h`).
    pub(super) const KVM_REQUEST: Self = Self {
        argument: 1,
        is: Is::Masked {
            mask: 0xff00,
            bits: 0xae00,
        },
    };
    /// Memory of mmap(2) and mprotect(2) that can't be executed.
    pub(super) const NOT_EXECUTABLE: Self = Self {
        argument: 2,
        is: Is::Masked {
            mask: libc::PROT_EXEC as u32,
            bits: 0,
        },
    };
    /// A signal to a thread of this process.
    pub(super) const THIS_PROCESS: Self = Self {
        argument: 0,
        is: Is::ThisProcess,
    };
    /// clone(2) with a thread's flags, as glibc has them.
    pub(super) const NEW_THREAD: Self = Self::equal(
        0,
        (CLONE_VM
            | CLONE_FS
            | CLONE_FILES
            | CLONE_SIGHAND
            | CLONE_THREAD
            | CLONE_SYSVSEM
            | CLONE_SETTLS
            | CLONE_PARENT_SETTID
            | CLONE_CHILD_CLEARTID) as u32,
    );
    /// fcntl(2): a file's flags.
    pub(super) const F_GETFD: Self = Self::equal(1, libc::F_GETFD as u32);
    /// prctl(2): the thread's name is read.
    pub(super) const PR_GET_NAME: Self = Self::equal(0, libc::PR_GET_NAME as u32);
    /// prctl(2): the thread gets a name.
    pub(super) const PR_SET_NAME: Self = Self::equal(0, libc::PR_SET_NAME as u32);
    /// ioctl(2): a file blocks or not.
    pub(super) const FIONBIO: Self = Self::equal(1, libc::FIONBIO as u32);
    /// ioctl(2): what a tap leaves to its reader.
    pub(super) const TUNSETOFFLOAD: Self = Self::equal(1, libc::TUNSETOFFLOAD as u32);
    /// socket(2): a Unix socket.
    pub(super) const AF_UNIX: Self = Self::equal(0, libc::AF_UNIX as u32);

    const fn equal(argument: u8, value: u32) -> Self {
        Self {
            argument,
            is: Is::Equal(value),
        }
    }

    /// The condition in the form that the library takes.
    pub(super) fn compile(&self) -> Result<SeccompCondition, BackendError> {
        let (operator, value) = match self.is {
            Is::Equal(value) => (SeccompCmpOp::Eq, value),
            Is::Masked { mask, bits } => (SeccompCmpOp::MaskedEq(mask.into()), bits),
            Is::ThisProcess => (SeccompCmpOp::Eq, process::id()),
        };
        SeccompCondition::new(
            self.argument,
            SeccompCmpArgLen::Dword,
            operator,
            value.into(),
        )
    }
}
