//! Watchpoints: data addresses whose accesses stop a vCPU.

use thiserror::Error;

use crate::vcpu::VcpuAccessError;

/// Address breakpoints that a processor has, DR0 to DR3 (SDM vol. 3, 17.2.1).
pub const DEBUG_REGISTERS: usize = 4;

/// A place in a guest's virtual memory to be watched by a debug register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchpoint {
    /// First guest virtual (linear) address, a multiple of `len`.
    pub address: u64,
    /// Bytes: 1, 2, 4 or 8.
    pub len: u8,
    /// What is watched for.
    pub access: Access,
}

/// What a [`Watchpoint`] watches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes.
    Write,
    /// Reads and writes, but not the fetching of instructions.
    ReadWrite,
}

/// Why watchpoints can't be set. Those set before stay.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WatchpointError {
    /// More than there are debug registers.
    #[error(
        "{0} watchpoints are more than the {DEBUG_REGISTERS} debug registers of a processor; \
         remove some"
    )]
    TooMany(usize),
    /// A length that debug registers don't have.
    #[error("a watchpoint can't watch {len} bytes at {address:#x}: 1, 2, 4 or 8 it must be")]
    Length {
        /// The watchpoint's address.
        address: u64,
        /// Its length.
        len: u8,
    },
    /// An address that isn't a multiple of the length, of which the processor
    /// would ignore the low bits (SDM vol. 3, 17.2.5).
    #[error(
        "a watchpoint of {len} bytes can't be at {address:#x}, which isn't a multiple of {len}; \
         use shorter ones"
    )]
    Misaligned {
        /// The watchpoint's address.
        address: u64,
        /// Its length.
        len: u8,
    },
    /// KVM didn't take them.
    #[error(transparent)]
    Vcpu(#[from] VcpuAccessError),
}

/// Whether debug registers can do it.
pub(crate) fn check(watchpoints: &[Watchpoint]) -> Result<(), WatchpointError> {
    if watchpoints.len() > DEBUG_REGISTERS {
        return Err(WatchpointError::TooMany(watchpoints.len()));
    }
    for &Watchpoint { address, len, .. } in watchpoints {
        if ![1, 2, 4, 8].contains(&len) {
            return Err(WatchpointError::Length { address, len });
        }
        if address % u64::from(len) != 0 {
            return Err(WatchpointError::Misaligned { address, len });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_debug_registers_cannot_watch_is_refused_with_its_reason() {
        let at = |address, len| Watchpoint {
            address,
            len,
            access: Access::Write,
        };
        assert_eq!(check(&[at(1, 1), at(2, 2), at(4, 4), at(8, 8)]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[at(0, 1); 5]), Err(WatchpointError::TooMany(5)));
        for len in [0, 3, 16] {
            let error = WatchpointError::Length { address: 0, len };
            assert_eq!(check(&[at(8, 8), at(0, len)]), Err(error));
        }
        for (address, len) in [(1, 2), (2, 4), (4, 8)] {
            let error = WatchpointError::Misaligned { address, len };
            assert_eq!(check(&[at(address, len)]), Err(error));
        }
    }
}
