//! The guest's physical memory.

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

    /// Writes `from` to guest memory at `at`. The guest sees an aligned write of 1, 2, 4 or 8 bytes
    /// whole or not at all.
    ///
    /// # Errors
    /// Part of the range is no memory, or can't be written.
    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError>;

    /// Writes as the guest could: as [`Self::write`], but not to memory that only the host may write,
    /// such as the arena's code. For writes whose address the guest chooses.
    ///
    /// # Errors
    /// As of [`Self::write`], and where the guest can't write.
    fn write_as_guest(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.write(at, from)
    }

    /// Writes `to` if the byte at `at` is `from`. Returns true if it was. It isn't atomic.
    ///
    /// # Errors
    /// As of [`Self::write`].
    fn replace(&self, at: GuestPhysAddr, from: u8, to: u8) -> Result<bool, MemoryError> {
        let mut byte = [0];
        self.read(at, &mut byte)?;
        let is_there = byte == [from];
        if is_there {
            self.write(at, &[to])?;
        }
        Ok(is_there)
    }

    /// Has the processor bring what is at `at` into its caches, without a wait for it. It is a hint: where nothing can
    /// be brought, nothing happens.
    fn prefetch(&self, at: GuestPhysAddr) {
        let _no_hint = at;
    }

    /// Reads a word of 8 bytes.
    ///
    /// # Errors
    /// As of [`Self::read`].
    fn read_u64(&self, at: GuestPhysAddr) -> Result<u64, MemoryError> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes a word of 8 bytes.
    ///
    /// # Errors
    /// As of [`Self::write`].
    fn write_u64(&self, at: GuestPhysAddr, word: u64) -> Result<(), MemoryError> {
        self.write(at, &word.to_le_bytes())
    }
}

/// An access to what isn't guest memory, or not memory that may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no guest memory for {len} bytes at physical address {at}")]
pub struct MemoryError {
    /// Start of the access.
    pub at: GuestPhysAddr,
    /// Length of the access in bytes.
    pub len: usize,
}
