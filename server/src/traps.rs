//! The monitor's traps, answered by the probe engine.

use std::sync::Arc;

use probe_engine::addr::{Tsc, VcpuId};
use probe_engine::engine::{Action, Engine, StepEnd};
use probe_engine::vcpu::{ControlRegisters, Registers, Vcpu, VcpuError};
use vmm::{DEBUG_REGISTERS, GuestRam, Trap, TrapHandler, VcpuContext, Verdict};

use crate::guest::{self, Ram};

/// Answers the traps of one VM.
#[derive(Debug)]
pub struct Traps(pub Arc<Engine>);

impl TrapHandler for Traps {
    fn trap(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam, trap: Trap) -> Verdict {
        let (engine, memory) = (&self.0, Ram(memory));
        let mut vcpu = Stopped::new(vcpu);
        let action = match trap {
            Trap::Breakpoint => engine.on_breakpoint(&memory, &mut vcpu),
            Trap::Step => engine.after_step(&memory, &mut vcpu, StepEnd::Done),
            Trap::StepAstray => engine.after_step(&memory, &mut vcpu, StepEnd::Astray),
            Trap::Hardware { dr6 } => {
                // What a watchpoint's hit is answered with says nothing but that it was one.
                let hit = engine.on_watchpoint(&memory, &mut vcpu, dr6);
                if is_handler(dr6, engine.watchpoints().len()) {
                    engine.after_step(&memory, &mut vcpu, StepEnd::Handler)
                } else {
                    hit
                }
            }
        };
        vcpu.write_back();
        verdict(action)
    }

    fn before_step(&self, vcpu: &mut VcpuContext<'_>, memory: &GuestRam) -> bool {
        let mut vcpu = Stopped::new(vcpu);
        let step = self.0.before_step(&Ram(memory), &mut vcpu);
        vcpu.write_back();
        step
    }
}

/// Whether a debug register matched that the monitor set for a step: those after the watchpoints.
fn is_handler(dr6: u64, watchpoints: usize) -> bool {
    (watchpoints..DEBUG_REGISTERS).any(|register| dr6 & 1 << register != 0)
}

/// The monitor's form of the engine's answer.
fn verdict(action: Action) -> Verdict {
    match action {
        Action::Resume => Verdict::Resume,
        Action::GiveBack => Verdict::GiveBack,
        Action::Step {
            alone,
            through,
            handlers,
        } => Verdict::Step {
            alone,
            through,
            handlers: handlers.map(|handler| handler.map(|at| at.0)),
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

/// A stopped vCPU for the engine. Registers are copied once and written back when they have changed.
struct Stopped<'a, 'v> {
    vcpu: &'a mut VcpuContext<'v>,
    registers: Registers,
    changed: bool,
}

impl<'a, 'v> Stopped<'a, 'v> {
    fn new(vcpu: &'a mut VcpuContext<'v>) -> Self {
        let registers = guest::registers(vcpu.registers());
        Self {
            vcpu,
            registers,
            changed: false,
        }
    }

    fn write_back(self) {
        if self.changed {
            guest::write_registers(&self.registers, self.vcpu.registers_mut());
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
            Ok(found) => Ok(guest::control(&found)),
            Err(error) => Err(guest::vcpu_error("control registers", &error)),
        }
    }

    fn tsc(&self) -> Tsc {
        Tsc(self.vcpu.tsc())
    }

    fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuError> {
        let result = self.vcpu.set_interrupt_shadow(on);
        result.map_err(|error| guest::vcpu_error("interrupt shadow", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::GuestVirtAddr;

    #[test]
    fn a_register_after_the_watchpoints_is_a_handler_of_a_step() {
        for (dr6, watchpoints, handler) in [
            (0x1, 0, true),
            (0x1, 1, false),
            (0x2, 1, true),
            (0x8, 3, true),
            (0x8, 4, false),
            (0x3, 1, true),
            // A single step alone.
            (0x4000, 0, false),
        ] {
            assert_eq!(is_handler(dr6, watchpoints), handler, "{dr6:#x}");
        }
    }

    #[test]
    fn a_step_keeps_its_handlers_and_whether_it_is_alone() {
        let handlers = [Some(GuestVirtAddr(8)), None, None, Some(GuestVirtAddr(9))];
        for alone in [false, true] {
            assert_eq!(
                verdict(Action::Step {
                    alone,
                    through: !alone,
                    handlers
                }),
                Verdict::Step {
                    alone,
                    through: !alone,
                    handlers: [Some(8), None, None, Some(9)]
                }
            );
        }
    }
}
