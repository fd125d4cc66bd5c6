//! Executes one instruction of the guest's for a debugger.
//!
//! Where the engine can, it executes the instruction itself: an emulated `pushf` saves no trap flag of ours, and `sti`
//! lets no interrupt in. Else KVM steps it. What is in the text is executed, so probes there are hit as ever.

use guest_state::x86_64::flags::TF;
use guest_state::x86_64::paging::read_virt;
use guest_state::x86_64::{INT3, MAX_INSTRUCTION_LEN};
use guest_state::{Action, GuestMemory, GuestVirtAddr, Step, StepEnd, Trap, Vcpu};

use crate::emulate::{self, Outcome};
use crate::engine::Engine;
use crate::engine::code::arena::CodeArena;
use crate::engine::debugger::state::{Stepped, StopReason};
use crate::engine::hits::step::{USUAL, clear_saved_trap_flag, handlers};

/// `pushf` (SDM vol. 2, PUSHF).
const PUSHF: u8 = 0x9c;
/// `syscall` (SDM vol. 2, SYSCALL).
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl Engine {
    /// Answers a trap of a guest that is debugged.
    pub(crate) fn trap_debugged(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        trap: Trap,
    ) -> Action {
        let id = vcpu.id();
        let stepped = match trap {
            Trap::Step(_) => self.debugger.end(id),
            _ => None,
        };
        let action = match (trap, stepped) {
            (Trap::StepWanted, _) => match self.debugger.steps_from(id) {
                Some(_) => self.execute_one(memory, vcpu),
                None => {
                    // The debugger doesn't want the step any more.
                    vcpu.pause_guest();
                    Action::Resume
                }
            },
            (Trap::Step(end), Some(stepped)) => {
                end_of(stepped, end, memory, vcpu);
                Action::Resume
            }
            _ => self.answer_trap(memory, vcpu, trap),
        };
        if self.debugger.is_under_way(id) && !matches!(trap, Trap::Step(_)) {
            // The step isn't over yet: an exception of the instruction has led here.
            return action;
        }
        self.go_on_stepping(action, memory, vcpu)
    }

    /// Stops a vCPU that has executed its instruction. Else has it go on until it has.
    fn go_on_stepping(
        &self,
        mut action: Action,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Action {
        let id = vcpu.id();
        while let Some(from) = self.debugger.steps_from(id) {
            match action {
                // The instruction ends with another trap.
                Action::Step(_) | Action::Hold => break,
                Action::Resume if self.is_on_the_way(from, vcpu) && self.debugger.count(id) => {
                    action = self.execute_one(memory, vcpu);
                }
                Action::Resume | Action::Reinject | Action::PageFault { .. } | Action::Halt => {
                    self.stop(vcpu, StopReason::Stepped);
                }
            }
        }
        action
    }

    /// Returns true if a vCPU is in code of ours, on its way to or from the instruction at `from`.
    fn is_on_the_way(&self, from: GuestVirtAddr, vcpu: &dyn Vcpu) -> bool {
        let rip = GuestVirtAddr(vcpu.registers().rip);
        CodeArena::covers(rip) && self.original(rip).is_none_or(|original| original == from)
    }

    /// Executes what is at RIP, or has it executed.
    fn execute_one(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let mut code = [0; MAX_INSTRUCTION_LEN];
        let at = GuestVirtAddr(vcpu.registers().rip);
        let len = self.read_code(memory, vcpu, at, &mut code);
        let code = &code[..len];
        if code.first() == Some(&INT3) {
            // The guest's own is left to the processor.
            match self.on_breakpoint(memory, vcpu) {
                Action::Reinject => {}
                action => return action,
            }
        } else if self.table().watched.is_empty() || code.first() == Some(&PUSHF) {
            // The debug registers don't notice accesses of the engine. But a `pushf` that KVM steps saves the trap
            // flag.
            match emulate::once(code, memory, vcpu) {
                Some(Outcome::Done) => return Action::Resume,
                Some(Outcome::Halted) => return Action::Halt,
                Some(Outcome::Fault {
                    address,
                    error_code,
                }) => {
                    return Action::PageFault {
                        address,
                        error_code,
                    };
                }
                Some(Outcome::Step) | None => {}
            }
        }
        let is_syscall = code.starts_with(&SYSCALL);
        self.debugger.begin(vcpu.id(), Stepped { is_syscall });
        Action::Step(Step {
            alone: false,
            run_to: None,
            handlers: handlers(memory, vcpu, USUAL),
        })
    }
}

impl Engine {
    /// Reads what a vCPU executes at an address, ours included. Returns the number of bytes.
    fn read_code(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        at: GuestVirtAddr,
        into: &mut [u8],
    ) -> usize {
        let table = self.table();
        if let Some((phys, left)) = table.image.to_phys(at) {
            let len = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            return match memory.read(phys, &mut into[..len]) {
                Ok(()) => len,
                Err(_) => 0,
            };
        }
        let tables = vcpu.page_tables();
        let read = tables.map(|tables| read_virt(memory, tables, at, into));
        match read {
            Some(Ok(())) => into.len(),
            Some(Err(fault)) => fault.done,
            None => 0,
        }
    }
}

/// Takes the trap flag that stepping has used out of what the instruction has saved.
fn end_of(stepped: Stepped, end: StepEnd, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
    match end {
        StepEnd::Exception(vector) => clear_saved_trap_flag(memory, vcpu, vector),
        StepEnd::Done if stepped.is_syscall => vcpu.registers_mut().r11 &= !TF,
        StepEnd::Done | StepEnd::Astray => {}
    }
}
