//! A guest for tests, with no monitor.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::addr::{GuestPhysAddr, GuestVirtAddr, PhysRange, Tsc, VcpuId};
use crate::debugging::{Debugging, DebuggingError};
use crate::memory::{GuestMemory, MemoryError};
use crate::stopped::StoppedGuest;
use crate::vcpu::{Vcpu, VcpuError};
use crate::x86_64::control::ControlRegisters;
use crate::x86_64::registers::Registers;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stopped guest: memory and vCPUs.
#[derive(Debug)]
pub struct TestGuest<'a> {
    /// Its memory, of `len` bytes.
    pub memory: &'a TestMemory,
    /// How much memory.
    pub len: u64,
    /// Its vCPUs.
    pub vcpus: Mutex<Vec<TestVcpu>>,
    /// What they are debugged for.
    pub debugging: Mutex<Debugging>,
    /// True if `set_debugging` refuses every change.
    pub refuses_debugging: AtomicBool,
}

impl<'a> TestGuest<'a> {
    /// A guest with one vCPU.
    pub fn new(memory: &'a TestMemory) -> Self {
        Self {
            memory,
            len: lock(&memory.bytes).len() as u64,
            vcpus: Mutex::new(vec![TestVcpu::default()]),
            debugging: Mutex::default(),
            refuses_debugging: AtomicBool::new(false),
        }
    }

    fn with<R>(
        &self,
        vcpu: VcpuId,
        access: impl FnOnce(&mut TestVcpu) -> R,
    ) -> Result<R, VcpuError> {
        let mut vcpus = lock(&self.vcpus);
        let found = vcpus.get_mut(vcpu.0 as usize).map(access);
        found.ok_or_else(|| VcpuError {
            vcpu,
            what: "find the state",
            cause: "there is no such vCPU".to_owned(),
        })
    }
}

impl StoppedGuest for TestGuest<'_> {
    fn memory(&self) -> &dyn GuestMemory {
        self.memory
    }

    fn ram(&self) -> Vec<PhysRange> {
        vec![PhysRange {
            start: GuestPhysAddr(0),
            len: self.len,
        }]
    }

    fn has_gigabyte_pages(&self) -> bool {
        true
    }

    fn vcpus(&self) -> u32 {
        lock(&self.vcpus).len() as u32
    }

    fn registers(&self, vcpu: VcpuId) -> Result<Registers, VcpuError> {
        self.with(vcpu, |vcpu| vcpu.registers)
    }

    fn set_registers(&self, vcpu: VcpuId, registers: &Registers) -> Result<(), VcpuError> {
        self.with(vcpu, |vcpu| vcpu.registers = *registers)
    }

    fn control(&self, vcpu: VcpuId) -> Result<ControlRegisters, VcpuError> {
        self.with(vcpu, |vcpu| vcpu.control)
    }

    fn set_debugging(&self, debugging: &Debugging) -> Result<(), DebuggingError> {
        debugging.check()?;
        let mut now = lock(&self.debugging);
        if *now != *debugging && self.refuses_debugging.load(Ordering::Relaxed) {
            return Err(DebuggingError::Vcpu(VcpuError {
                vcpu: VcpuId(0),
                what: "set up the debugging",
                cause: "the test says so".to_owned(),
            }));
        }
        now.clone_from(debugging);
        Ok(())
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

    /// Protects a range of physical addresses from the guest's writes, and no other.
    pub fn protect(&self, range: Range<u64>) {
        *lock(&self.protected) = range;
    }

    /// Runs `access` on the bytes of a range, if it is inside memory.
    fn with<R>(
        &self,
        at: GuestPhysAddr,
        len: usize,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, MemoryError> {
        let mut bytes = lock(&self.bytes);
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
        let protected = lock(&self.protected).clone();
        if at.0 < protected.end && end > protected.start {
            return Err(MemoryError { at, len });
        }
        self.write(at, from)
    }
}

/// A vCPU that consists of its state only. At first it runs 64-bit code at privilege level 0
/// without paging, which no real one can: addresses are their own translation.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "each field is the answer of the method of that name"
)]
pub struct TestVcpu {
    pub id: VcpuId,
    pub registers: Registers,
    pub control: ControlRegisters,
    pub tsc: Tsc,
    /// True if interrupts are held back for one instruction.
    pub interrupt_shadow: bool,
    pub step_under_way: Option<GuestVirtAddr>,
    /// True after [`Vcpu::pause_guest`].
    pub pauses_guest: bool,
}

impl Default for TestVcpu {
    fn default() -> Self {
        Self {
            id: VcpuId(0),
            registers: Registers {
                rflags: 2,
                ..Registers::default()
            },
            control: ControlRegisters {
                code64: true,
                ..ControlRegisters::default()
            },
            tsc: Tsc(0),
            interrupt_shadow: false,
            step_under_way: None,
            pauses_guest: false,
        }
    }
}

impl Vcpu for TestVcpu {
    fn id(&self) -> VcpuId {
        self.id
    }

    fn registers(&self) -> &Registers {
        &self.registers
    }

    fn registers_mut(&mut self) -> &mut Registers {
        &mut self.registers
    }

    fn control(&mut self) -> Result<&ControlRegisters, VcpuError> {
        Ok(&self.control)
    }

    fn tsc(&self) -> Tsc {
        self.tsc
    }

    fn interrupt_shadow(&self) -> Result<bool, VcpuError> {
        Ok(self.interrupt_shadow)
    }

    fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuError> {
        self.interrupt_shadow = on;
        Ok(())
    }

    fn pause_guest(&mut self) {
        self.pauses_guest = true;
    }

    fn step_under_way(&self) -> Option<GuestVirtAddr> {
        self.step_under_way
    }
}

#[cfg(test)]
mod tests {
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
