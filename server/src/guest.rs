//! The monitor's guest for the engine: its memory, its vCPUs, and the types of both sides.

use probe_engine::addr::GuestPhysAddr;
use probe_engine::engine::Watchpoint;
use probe_engine::guest::{GuestMemory, MemoryError, StoppedGuest};
use probe_engine::vcpu::{ControlRegisters, Registers, VcpuError};
use vmm::{Access, GuestRam, Stopped};

/// Guest memory for the engine.
#[derive(Debug)]
pub struct Ram<'a>(pub &'a GuestRam);

impl GuestMemory for Ram<'_> {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        let len = into.len();
        self.0.read(at.0, into).map_err(|_| MemoryError { at, len })
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.0.write(at.0, from).map_err(|_| MemoryError {
            at,
            len: from.len(),
        })
    }

    fn write_as_guest(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.0.write_as_guest(at.0, from).map_err(|_| MemoryError {
            at,
            len: from.len(),
        })
    }
}

/// A guest that stands still, for the engine.
pub struct StoppedVm<'a> {
    guest: &'a Stopped<'a>,
    ram: Ram<'a>,
    vcpus: u32,
}

impl<'a> StoppedVm<'a> {
    /// The engine's view of this guest, which has so many vCPUs.
    pub fn new(guest: &'a Stopped<'a>, vcpus: u32) -> Self {
        Self {
            guest,
            ram: Ram(guest.memory()),
            vcpus,
        }
    }

    /// The monitor's view of it.
    pub fn guest(&self) -> &'a Stopped<'a> {
        self.guest
    }

    /// Its memory.
    pub fn ram(&self) -> &Ram<'a> {
        &self.ram
    }
}

impl StoppedGuest for StoppedVm<'_> {
    fn memory(&self) -> &dyn GuestMemory {
        &self.ram
    }

    fn ram(&self) -> Vec<(GuestPhysAddr, u64)> {
        let ranges = self.ram.0.ranges().into_iter();
        ranges.map(|(at, len)| (GuestPhysAddr(at), len)).collect()
    }

    fn vcpus(&self) -> u32 {
        self.vcpus
    }

    fn registers(&self, vcpu: u32) -> Result<Registers, VcpuError> {
        match self.guest.registers(vcpu) {
            Ok(found) => Ok(registers(&found)),
            Err(error) => Err(vcpu_error("registers", &error)),
        }
    }

    fn set_registers(&self, vcpu: u32, registers: &Registers) -> Result<(), VcpuError> {
        let mut changed = vmm::Registers::default();
        write_registers(registers, &mut changed);
        let result = self.guest.set_registers(vcpu, &changed);
        result.map_err(|error| vcpu_error("registers", &error))
    }

    fn control(&self, vcpu: u32) -> Result<ControlRegisters, VcpuError> {
        match self.guest.control(vcpu) {
            Ok(found) => Ok(control(&found)),
            Err(error) => Err(vcpu_error("control registers", &error)),
        }
    }
}

/// The engine's form of what KVM refused.
pub fn vcpu_error(what: &'static str, error: &vmm::VcpuAccessError) -> VcpuError {
    VcpuError {
        vcpu: error.vcpu.into(),
        what,
        reason: error.to_string(),
    }
}

/// The monitor's form of a watchpoint.
pub fn watchpoint(from: &Watchpoint) -> vmm::Watchpoint {
    vmm::Watchpoint {
        address: from.address.0,
        len: from.len,
        access: if from.reads {
            Access::ReadWrite
        } else {
            Access::Write
        },
    }
}

/// The engine's form of the monitor's general registers.
pub fn registers(from: &vmm::Registers) -> Registers {
    Registers {
        rax: from.rax,
        rbx: from.rbx,
        rcx: from.rcx,
        rdx: from.rdx,
        rsi: from.rsi,
        rdi: from.rdi,
        rsp: from.rsp,
        rbp: from.rbp,
        r8: from.r8,
        r9: from.r9,
        r10: from.r10,
        r11: from.r11,
        r12: from.r12,
        r13: from.r13,
        r14: from.r14,
        r15: from.r15,
        rip: from.rip,
        rflags: from.rflags,
    }
}

/// Sets the monitor's general registers from the engine's.
pub fn write_registers(from: &Registers, to: &mut vmm::Registers) {
    to.rax = from.rax;
    to.rbx = from.rbx;
    to.rcx = from.rcx;
    to.rdx = from.rdx;
    to.rsi = from.rsi;
    to.rdi = from.rdi;
    to.rsp = from.rsp;
    to.rbp = from.rbp;
    to.r8 = from.r8;
    to.r9 = from.r9;
    to.r10 = from.r10;
    to.r11 = from.r11;
    to.r12 = from.r12;
    to.r13 = from.r13;
    to.r14 = from.r14;
    to.r15 = from.r15;
    to.rip = from.rip;
    to.rflags = from.rflags;
}

/// The engine's form of the monitor's control registers.
pub fn control(from: &vmm::ControlRegisters) -> ControlRegisters {
    ControlRegisters {
        cr0: from.cr0,
        cr2: from.cr2,
        cr3: from.cr3,
        cr4: from.cr4,
        efer: from.efer,
        fs_base: from.fs_base,
        gs_base: from.gs_base,
        idt_base: from.idt_base,
        idt_limit: from.idt_limit,
        cpl: from.cpl,
        code64: from.code64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_go_to_the_monitor_and_back_unchanged() {
        let ours = Registers {
            rax: 1,
            rbx: 2,
            rcx: 3,
            rdx: 4,
            rsi: 5,
            rdi: 6,
            rsp: 7,
            rbp: 8,
            r8: 9,
            r9: 10,
            r10: 11,
            r11: 12,
            r12: 13,
            r13: 14,
            r14: 15,
            r15: 16,
            rip: 17,
            rflags: 18,
        };
        let mut theirs = vmm::Registers::default();
        write_registers(&ours, &mut theirs);
        assert_eq!(registers(&theirs), ours);
        assert_eq!((theirs.rsi, theirs.rsp, theirs.rflags), (5, 7, 18));
    }
}
