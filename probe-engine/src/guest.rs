//! The guest as the engine sees it.

use thiserror::Error;

use crate::addr::GuestPhysAddr;
use crate::vcpu::{ControlRegisters, Registers, VcpuError};

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

    /// As [`Self::write`], for the guest: what it could write itself. Where an address of such a
    /// write is the guest's choice, this keeps it from memory that is only the host's to write, as the
    /// arena's code.
    ///
    /// # Errors
    /// As said, and where the guest can't write.
    fn write_as_guest(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.write(at, from)
    }
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

/// A guest whose vCPUs are all out of guest mode, and stay so while it is borrowed.
pub trait StoppedGuest {
    /// Its memory.
    fn memory(&self) -> &dyn GuestMemory;

    /// Where it has RAM: first address and bytes of each range.
    fn ram(&self) -> Vec<(GuestPhysAddr, u64)>;

    /// How many vCPUs it has.
    fn vcpus(&self) -> u32;

    /// General registers of a vCPU.
    ///
    /// # Errors
    /// When the monitor can't read them.
    fn registers(&self, vcpu: u32) -> Result<Registers, VcpuError>;

    /// Sets the general registers of a vCPU.
    ///
    /// # Errors
    /// When the monitor can't change them.
    fn set_registers(&self, vcpu: u32, registers: &Registers) -> Result<(), VcpuError>;

    /// Control registers of a vCPU.
    ///
    /// # Errors
    /// When the monitor can't read them.
    fn control(&self, vcpu: u32) -> Result<ControlRegisters, VcpuError>;
}

/// A guest for tests, with no monitor.
pub mod testing {
    use std::ops::Range;
    use std::sync::{Mutex, PoisonError};

    use super::{
        ControlRegisters, GuestMemory, GuestPhysAddr, MemoryError, Registers, StoppedGuest,
        VcpuError,
    };
    use crate::vcpu::testing::TestVcpu;

    /// A stopped guest: memory and vCPUs.
    #[derive(Debug)]
    pub struct TestGuest<'a> {
        /// Its memory, of `len` bytes.
        pub memory: &'a TestMemory,
        /// How much memory.
        pub len: u64,
        /// Its vCPUs.
        pub vcpus: Mutex<Vec<TestVcpu>>,
    }

    impl<'a> TestGuest<'a> {
        /// A guest with one vCPU.
        pub fn new(memory: &'a TestMemory) -> Self {
            let len = memory
                .bytes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len();
            Self {
                memory,
                len: len as u64,
                vcpus: Mutex::new(vec![TestVcpu::default()]),
            }
        }

        fn with<R>(
            &self,
            vcpu: u32,
            access: impl FnOnce(&mut TestVcpu) -> R,
        ) -> Result<R, VcpuError> {
            let mut vcpus = self.vcpus.lock().unwrap_or_else(PoisonError::into_inner);
            vcpus
                .get_mut(vcpu as usize)
                .map(access)
                .ok_or_else(|| VcpuError {
                    vcpu: vcpu.into(),
                    what: "state",
                    reason: "there is no such vCPU".to_owned(),
                })
        }
    }

    impl StoppedGuest for TestGuest<'_> {
        fn memory(&self) -> &dyn GuestMemory {
            self.memory
        }

        fn ram(&self) -> Vec<(GuestPhysAddr, u64)> {
            vec![(GuestPhysAddr(0), self.len)]
        }

        fn vcpus(&self) -> u32 {
            let vcpus = self.vcpus.lock().unwrap_or_else(PoisonError::into_inner);
            vcpus.len() as u32
        }

        fn registers(&self, vcpu: u32) -> Result<Registers, VcpuError> {
            self.with(vcpu, |vcpu| vcpu.registers)
        }

        fn set_registers(&self, vcpu: u32, registers: &Registers) -> Result<(), VcpuError> {
            self.with(vcpu, |vcpu| vcpu.registers = *registers)
        }

        fn control(&self, vcpu: u32) -> Result<ControlRegisters, VcpuError> {
            self.with(vcpu, |vcpu| vcpu.control)
        }
    }

    /// A stretch of zeroed guest memory from physical address 0.
    #[derive(Debug)]
    pub struct TestMemory {
        bytes: Mutex<Vec<u8>>,
        /// What the guest can't write.
        protected: Mutex<Range<u64>>,
    }

    impl TestMemory {
        /// Memory of `len` bytes.
        pub fn new(len: usize) -> Self {
            Self {
                bytes: Mutex::new(vec![0; len]),
                protected: Mutex::default(),
            }
        }

        /// Keeps a range of physical addresses from the guest's writes, and no other.
        pub fn protect(&self, range: Range<u64>) {
            *self
                .protected
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = range;
        }

        /// Runs `access` on the bytes of a range, if it is inside memory.
        fn with<R>(
            &self,
            at: GuestPhysAddr,
            len: usize,
            access: impl FnOnce(&mut [u8]) -> R,
        ) -> Result<R, MemoryError> {
            let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
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

        fn write_as_guest(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
            let len = from.len();
            let end = at.0.saturating_add(len as u64);
            let protected = self
                .protected
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            if at.0 < protected.end && end > protected.start {
                return Err(MemoryError { at, len });
            }
            self.write(at, from)
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
