//! The monitor's traps, answered by the probe engine.

use std::sync::Arc;

use probe_engine::addr::{GuestPhysAddr, Tsc, VcpuId};
use probe_engine::engine::{Action, Engine};
use probe_engine::guest::{GuestMemory, MemoryError};
use probe_engine::vcpu::{ControlRegisters, Registers, Vcpu, VcpuError};
use vmm::{GuestRam, Trap, TrapHandler, VcpuContext, Verdict};

/// Answers the traps of one VM.
#[derive(Debug)]
pub struct Traps(pub Arc<Engine>);

impl TrapHandler for Traps {
    fn trap(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam, trap: Trap) -> Verdict {
        let mut vcpu = Stopped::new(vcpu);
        let action = match trap {
            Trap::Breakpoint => self.0.on_breakpoint(&Ram(memory), &mut vcpu),
            Trap::Step | Trap::StepAstray => self.0.after_step(&Ram(memory), &mut vcpu),
            // The engine plants none.
            Trap::Hardware { .. } => Action::GiveBack,
        };
        vcpu.write_back();
        match action {
            Action::Resume => Verdict::Resume,
            Action::GiveBack => Verdict::GiveBack,
            Action::StepAlone => Verdict::Step {
                alone: true,
                through: false,
                handlers: [None; 4],
            },
            Action::PageFault {
                address,
                error_code,
            } => Verdict::PageFault {
                address: address.0,
                error_code,
            },
            Action::Halt => Verdict::Halt,
        }
    }

    fn before_step(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam) -> bool {
        let mut vcpu = Stopped::new(vcpu);
        let step = self.0.before_step(&Ram(memory), &mut vcpu);
        vcpu.write_back();
        step
    }
}

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
}

/// A stopped vCPU for the engine. Registers are copied once and written back when they have changed.
struct Stopped<'a, 'v> {
    vcpu: &'a mut VcpuContext<'v>,
    registers: Registers,
    changed: bool,
}

impl<'a, 'v> Stopped<'a, 'v> {
    fn new(vcpu: &'a mut VcpuContext<'v>) -> Self {
        let registers = registers(vcpu.registers());
        Self {
            vcpu,
            registers,
            changed: false,
        }
    }

    fn write_back(self) {
        if self.changed {
            write_registers(&self.registers, self.vcpu.registers_mut());
        }
    }

    fn error(&self, what: &'static str, error: &vmm::VcpuAccessError) -> VcpuError {
        VcpuError {
            vcpu: self.id(),
            what,
            reason: error.to_string(),
        }
    }
}

impl Vcpu for Stopped<'_, '_> {
    fn id(&self) -> VcpuId {
        VcpuId(self.vcpu.id())
    }

    fn registers(&self) -> &Registers {
        &self.registers
    }

    fn registers_mut(&mut self) -> &mut Registers {
        self.changed = true;
        &mut self.registers
    }

    fn control(&mut self) -> Result<ControlRegisters, VcpuError> {
        match self.vcpu.control() {
            Ok(found) => Ok(control(&found)),
            Err(error) => Err(self.error("control registers", &error)),
        }
    }

    fn tsc(&self) -> Tsc {
        Tsc(self.vcpu.tsc())
    }

    fn set_interrupt_shadow(&mut self) -> Result<(), VcpuError> {
        let result = self.vcpu.set_interrupt_shadow(true);
        result.map_err(|error| self.error("interrupt shadow", &error))
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

/// The engine's form of the monitor's control registers.
fn control(from: &vmm::ControlRegisters) -> ControlRegisters {
    ControlRegisters {
        cr0: from.cr0,
        cr3: from.cr3,
        cr4: from.cr4,
        efer: from.efer,
        fs_base: from.fs_base,
        gs_base: from.gs_base,
        cpl: from.cpl,
        code64: from.code64,
    }
}

fn write_registers(from: &Registers, to: &mut vmm::Registers) {
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
