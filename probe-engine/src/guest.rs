//! The guest as the engine sees it.

use thiserror::Error;

use crate::addr::GuestPhysAddr;

/// The guest's physical memory.
///
/// An access is all or nothing: one that isn't wholly inside memory fails without effect.
pub trait GuestMemory {
    /// Fills `into` from guest memory at `at`.
    ///
    /// # Errors
    /// Part of the range is no memory.
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError>;

    /// Writes `from` to guest memory at `at`.
    ///
    /// # Errors
    /// Part of the range is no memory, or can't be written.
    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError>;
}

/// An access to what isn't guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no guest memory for {len} bytes at physical address {at}")]
pub struct MemoryError {
    /// Start of the access.
    pub at: GuestPhysAddr,
    /// Length of the access in bytes.
    pub len: usize,
}

/// Guest memory for tests, with no guest.
pub mod testing {
    use std::sync::{Mutex, PoisonError};

    use super::{GuestMemory, GuestPhysAddr, MemoryError};

    /// A stretch of zeroed guest memory from physical address 0.
    #[derive(Debug)]
    pub struct TestMemory(Mutex<Vec<u8>>);

    impl TestMemory {
        /// Memory of `len` bytes.
        pub fn new(len: usize) -> Self {
            Self(Mutex::new(vec![0; len]))
        }

        /// Runs `access` on the bytes of a range, if it is inside memory.
        fn with<R>(
            &self,
            at: GuestPhysAddr,
            len: usize,
            access: impl FnOnce(&mut [u8]) -> R,
        ) -> Result<R, MemoryError> {
            let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            usize::try_from(at.0)
                .ok()
                .and_then(|start| bytes.get_mut(start..start.checked_add(len)?))
                .map(access)
                .ok_or(MemoryError { at, len })
        }
    }

    impl GuestMemory for TestMemory {
        fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
            self.with(at, into.len(), |bytes| into.copy_from_slice(bytes))
        }

        fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
            self.with(at, from.len(), |bytes| bytes.copy_from_slice(from))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::TestMemory;
    use super::*;

    #[test]
    fn test_memory_gives_back_what_was_written() {
        let memory = TestMemory::new(16);
        memory.write(GuestPhysAddr(4), &[1, 2, 3]).unwrap();
        let mut bytes = [0; 5];
        memory.read(GuestPhysAddr(3), &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3, 0]);
    }

    #[test]
    fn test_memory_refuses_what_is_not_wholly_inside() {
        let memory = TestMemory::new(16);
        for at in [15, 16, u64::MAX] {
            let error = memory.write(GuestPhysAddr(at), &[1, 2]).unwrap_err();
            assert_eq!(
                error,
                MemoryError {
                    at: GuestPhysAddr(at),
                    len: 2
                }
            );
        }
        let mut byte = [9];
        memory.read(GuestPhysAddr(15), &mut byte).unwrap();
        assert_eq!(byte, [0], "a refused write changed memory");
    }
}
