//! What vCPUs are debugged for.

use thiserror::Error;

use crate::addr::GuestVirtAddr;
use crate::vcpu::VcpuError;
use crate::x86_64::DEBUG_REGISTERS;

/// What all vCPUs of a guest are debugged for, besides single steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Debugging {
    /// True if int3s of the guest come as traps. If not, the guest handles them itself at full speed.
    pub breakpoints: bool,
    /// Watched data, at most [`DEBUG_REGISTERS`]. While there is any, the guest's own debug registers
    /// don't work: it may set them, but they never match.
    pub watchpoints: Vec<Watchpoint>,
}

/// Data that a debug register watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watchpoint {
    /// Its first virtual (linear) address, a multiple of `len`.
    pub address: GuestVirtAddr,
    /// Bytes: 1, 2, 4 or 8.
    pub len: u8,
    /// What is watched for.
    pub access: Access,
}

/// What a [`Watchpoint`] watches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes.
    Write,
    /// Reads and writes, but not the fetching of instructions.
    ReadWrite,
    /// The execution of the instruction that begins there; the length is 1. The trap comes before it, with RIP
    /// at it, and comes again as long as the vCPU resumes there (SDM vol. 3, 17.3.1.1).
    Execute,
}

/// Why vCPUs can't be debugged for something. What they were debugged for before stays.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DebuggingError {
    /// More than there are debug registers.
    #[error(
        "{0} watchpoints are more than the {DEBUG_REGISTERS} debug registers of a processor; remove some"
    )]
    TooMany(usize),
    /// A length that debug registers don't have.
    #[error("a watchpoint is 1, 2, 4 or 8 bytes long, not {len} as at {address}")]
    Length {
        /// The watchpoint's address.
        address: GuestVirtAddr,
        /// Its length in bytes.
        len: u8,
    },
    /// A length that a breakpoint can't have.
    #[error("a hardware breakpoint is 1 byte long, not {len} as at {address}")]
    ExecuteLength {
        /// The breakpoint's address.
        address: GuestVirtAddr,
        /// Its length in bytes.
        len: u8,
    },
    /// An address that isn't a multiple of the length, whose low bits the processor would ignore
    /// (SDM vol. 3, 17.2.5).
    #[error(
        "a watchpoint of {len} bytes can't be at {address}, which isn't a multiple of {len}; use shorter ones"
    )]
    Misaligned {
        /// The watchpoint's address.
        address: GuestVirtAddr,
        /// Its length in bytes.
        len: u8,
    },
    /// The monitor can't set a vCPU up for it.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
}

impl Watchpoint {
    /// Checks that a debug register can watch it (SDM vol. 3, 17.2.5).
    ///
    /// # Errors
    /// [`DebuggingError::Length`], [`DebuggingError::ExecuteLength`] and [`DebuggingError::Misaligned`].
    pub fn check(&self) -> Result<(), DebuggingError> {
        let Self { address, len, .. } = *self;
        if ![1, 2, 4, 8].contains(&len) {
            return Err(DebuggingError::Length { address, len });
        }
        if self.access == Access::Execute && len != 1 {
            return Err(DebuggingError::ExecuteLength { address, len });
        }
        if !address.0.is_multiple_of(len.into()) {
            return Err(DebuggingError::Misaligned { address, len });
        }
        Ok(())
    }
}

impl Debugging {
    /// Checks that the debug registers can do it.
    ///
    /// # Errors
    /// All of [`DebuggingError`] but the last.
    pub fn check(&self) -> Result<(), DebuggingError> {
        if self.watchpoints.len() > DEBUG_REGISTERS {
            return Err(DebuggingError::TooMany(self.watchpoints.len()));
        }
        self.watchpoints.iter().try_for_each(Watchpoint::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchpoint_that_debug_registers_can_t_have_is_refused_with_its_reason() {
        let check = |watchpoints: &[(u64, u8)]| {
            let watchpoint = |&(address, len)| Watchpoint {
                address: GuestVirtAddr(address),
                len,
                access: Access::Write,
            };
            let debugging = Debugging {
                breakpoints: false,
                watchpoints: watchpoints.iter().map(watchpoint).collect(),
            };
            debugging.check()
        };
        assert_eq!(check(&[(1, 1), (2, 2), (4, 4), (8, 8)]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[(0, 1); 5]), Err(DebuggingError::TooMany(5)));
        for len in [0, 3, 16] {
            let address = GuestVirtAddr(0);
            let error = DebuggingError::Length { address, len };
            assert_eq!(check(&[(8, 8), (0, len)]), Err(error));
        }
        for (address, len) in [(1, 2), (2, 4), (4, 8)] {
            let error = DebuggingError::Misaligned {
                address: GuestVirtAddr(address),
                len,
            };
            assert_eq!(check(&[(address, len)]), Err(error));
        }
    }
}
