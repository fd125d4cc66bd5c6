//! Single steps: for instructions that can be neither emulated nor safely boosted.
//!
//! An exception of the stepped instruction is noticed at the first instruction of the guest's
//! handler, by a debug register of this vCPU alone. The stack frame that the processor has pushed
//! there is put right before the handler sees it: a return address in the copy becomes the
//! original one, and the trap flag that stepping uses is cleared (SDM vol. 3A, 6.14.2 and 6.12.1.2).

use std::sync::Arc;

use guest_state::x86_64::flags::TF;
use guest_state::x86_64::idt::{GATE_LEN, GateDescriptor};
use guest_state::x86_64::paging::{read_virt, write_virt};
use guest_state::x86_64::vector;
use guest_state::{
    Action, ExceptionHandler, GuestMemory, GuestVirtAddr, Registers, Step, StepEnd, Vcpu,
};

use crate::engine::Engine;
use crate::engine::hits::int3::{Found, find};
use crate::engine::hits::stepping::{StepIn, Stepping};
use crate::engine::sites::site::{Site, Way};
use crate::event::Detail;

/// Exceptions that an instruction may raise of which nothing is known.
pub(crate) const USUAL: [u8; 4] = [
    vector::PAGE_FAULT,
    vector::GENERAL_PROTECTION,
    vector::INVALID_OPCODE,
    vector::DIVIDE_ERROR,
];

impl Engine {
    /// Begins to step the site's instruction.
    pub(crate) fn step(
        &self,
        site: &Arc<Site>,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        at: StepIn,
    ) -> Action {
        let raises = match &*site.way {
            Way::Step { raises, .. } => *raises,
            Way::Emulate { .. } | Way::Boost { .. } => USUAL,
        };
        let handlers = handlers(memory, vcpu, raises);
        let alone = matches!(at, StepIn::Place);
        let end = match &at {
            StepIn::Copy(copy) => {
                vcpu.registers_mut().rip = copy.slot.address.0;
                copy.end
            }
            StepIn::Place => GuestVirtAddr(vcpu.registers().rip).wrapping_add(site.len.into()),
        };
        let (id, rip) = (vcpu.id(), vcpu.registers().rip);
        let given_up = self.steps.begin(Stepping {
            vcpu: id,
            site: Arc::clone(site),
            at,
            rip,
        });
        // A step that has led here by an exception ends without a report.
        if let Some(given_up) = given_up {
            self.plant_again(&given_up, memory);
        }
        Action::Step(Step {
            alone,
            // A repeated instruction may have thousands of rounds.
            run_to: site.repeats().then_some(end),
            handlers,
        })
    }

    /// Has all other vCPUs stand still for [`TrapHandler::before_step`](guest_state::TrapHandler::before_step), which
    /// calls the step off.
    pub(crate) fn stop_others(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        // A step that has led here by an exception ends without a report.
        if let Some(given_up) = self.steps.end(vcpu.id()) {
            self.plant_again(&given_up, memory);
        }
        Action::Step(Step {
            alone: true,
            ..Step::default()
        })
    }

    /// Puts the original instruction back for a lone step; RIP is at it and all other vCPUs are
    /// stopped. Returns false if the probe went away meanwhile, so that there is nothing to step:
    /// the vCPU just resumes.
    pub(crate) fn lift_for_step(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> bool {
        let table = self.table();
        match find(&table, memory, vcpu) {
            Found::Ours(site) => site.lift(memory).is_ok(),
            Found::Stale | Found::Foreign => {
                self.steps.end(vcpu.id());
                let rip = GuestVirtAddr(vcpu.registers().rip);
                // The hit has been counted; a jump that was written there meanwhile would count it again.
                let copy = table.site(rip).and_then(|site| site.jump()?.copy(0));
                if let Some(copy) = copy {
                    vcpu.registers_mut().rip = copy.0;
                }
                false
            }
        }
    }

    /// Ends a step; after a lone one, plants the breakpoint again. To be called for each
    /// [`Action::Step`] whose step has begun, wherever RIP is now; after a lone one before the
    /// other vCPUs go on. Returns [`Action::Step`] when a repeated string instruction has more
    /// rounds to go.
    pub(crate) fn after_step(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        end: StepEnd,
    ) -> Action {
        let Some(step) = self.steps.end(vcpu.id()) else {
            // The step was of a debugger that has gone.
            if let StepEnd::Exception(vector) = end {
                clear_saved_trap_flag(memory, vcpu, vector);
            }
            return Action::Resume;
        };
        self.plant_again(&step, memory);
        match end {
            StepEnd::Done => self.stepped(&step, memory, vcpu),
            StepEnd::Exception(vector) => {
                self.raised(&step, vector, memory, vcpu);
                Action::Resume
            }
            StepEnd::Astray => Action::Resume,
        }
    }

    /// Writes the breakpoint that a lone step has lifted.
    fn plant_again(&self, step: &Stepping, memory: &dyn GuestMemory) {
        let table = self.table();
        let armed = table.site(step.site.virt).filter(|site| site.armed);
        if let (StepIn::Place, Some(site)) = (&step.at, armed) {
            // Failing means that the text is no memory any more: nothing can trap there.
            let _planted = site.plant(memory);
        }
    }

    fn stepped(&self, step: &Stepping, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let site = &step.site;
        let rip = vcpu.registers().rip;
        let again = site.repeats() && rip == step.rip;
        if let StepIn::Copy(copy) = &step.at {
            if again {
                vcpu.registers_mut().rip = site.virt.0;
            } else if rip == copy.end.0 {
                vcpu.registers_mut().rip = site.next().0;
            } else {
                // No branch has a copy: on a KVM that emulates the guest's kernel the step has
                // led into the handler of an exception.
                return Action::Resume;
            }
        }
        if again {
            let table = self.table();
            return match table.site(site.virt) {
                Some(site) if site.armed => self.pass(site, memory, vcpu),
                _ => Action::Resume,
            };
        }
        for probe in site.enabled().filter(|probe| !probe.wants_post()) {
            probe.exit();
        }
        self.done(site, memory, vcpu);
        Action::Resume
    }

    /// Puts the handler's frame right for an exception that the stepped instruction has raised, and
    /// reports the exception.
    fn raised(&self, step: &Stepping, vector: u8, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        for probe in step.site.enabled() {
            probe.exit();
        }
        let Some(frame) = ExceptionFrame::read(memory, vcpu, vector) else {
            return;
        };
        if frame.rip != step.rip {
            // Another exception came first, an NMI: it returns to the instruction.
            frame.write(memory, vcpu, frame.rip);
            return;
        }
        frame.write(
            memory,
            vcpu,
            match step.at {
                StepIn::Copy(_) => step.site.virt.0,
                StepIn::Place => step.rip,
            },
        );
        if vector == vector::PAGE_FAULT {
            self.enter_again(&step.site, memory, vcpu, frame.rsp);
            self.not_entered(&step.site, frame.rsp);
        }
        let address = vcpu
            .control()
            .ok()
            .map(|control| GuestVirtAddr(control.cr2));
        let registers = Registers {
            rip: step.site.virt.0,
            rsp: frame.rsp,
            rflags: frame.rflags & !TF,
            ..*vcpu.registers()
        };
        self.report(
            &step.site,
            (memory, vcpu),
            &registers,
            &Detail::Fault {
                vector,
                error_code: frame.error_code,
                address: address.filter(|_| vector == vector::PAGE_FAULT),
            },
        );
    }
}

/// Takes the trap flag that stepping has used out of the frame of the exception that a stepped instruction has raised.
pub(crate) fn clear_saved_trap_flag(memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu, vector: u8) {
    if let Some(frame) = ExceptionFrame::read(memory, vcpu, vector) {
        frame.write(memory, vcpu, frame.rip);
    }
}

/// Entry points of the guest's handlers of these exceptions.
pub(crate) fn handlers(
    memory: &dyn GuestMemory,
    vcpu: &mut dyn Vcpu,
    vectors: [u8; 4],
) -> [Option<ExceptionHandler>; 4] {
    let Ok(control) = vcpu.control() else {
        return [None; 4];
    };
    let tables = control.page_tables().ok();
    vectors.map(|vector| {
        let at = GateDescriptor::address(control.idt_base, control.idt_limit, vector)?;
        let mut gate = [0; GATE_LEN];
        read_virt(memory, tables?, at, &mut gate).ok()?;
        let entry = GateDescriptor::from_bytes(gate).handler;
        (entry.0 != 0).then_some(ExceptionHandler { vector, entry })
    })
}

/// What the processor pushes for a handler.
#[derive(Debug, Clone, Copy)]
struct ExceptionFrame {
    error_code: Option<u32>,
    rip: u64,
    rflags: u64,
    rsp: u64,
    /// Where `rip` is on the stack.
    at: GuestVirtAddr,
}

impl ExceptionFrame {
    /// RIP, CS, RFLAGS, RSP.
    const WORDS: usize = 4;

    fn read(memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu, vector: u8) -> Option<Self> {
        let tables = vcpu.page_tables()?;
        let top = GuestVirtAddr(vcpu.registers().rsp);
        let mut error_code = None;
        let mut at = top;
        if vector::has_error_code(vector) {
            let mut word = [0; 4];
            read_virt(memory, tables, top, &mut word).ok()?;
            error_code = Some(u32::from_le_bytes(word));
            at = top.wrapping_add(8);
        }
        let mut bytes = [0; 8 * Self::WORDS];
        read_virt(memory, tables, at, &mut bytes).ok()?;
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let rip = words.next()?;
        let _cs = words.next()?;
        let rflags = words.next()?;
        let rsp = words.next()?;
        Some(Self {
            error_code,
            rip,
            rflags,
            rsp,
            at,
        })
    }

    /// Makes the handler return to `rip`, without the trap flag.
    fn write(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu, rip: u64) {
        let Some(tables) = vcpu.page_tables() else {
            return;
        };
        let rflags = self.rflags & !TF;
        // The processor has just written there.
        let _rip = write_virt(memory, tables, self.at, &rip.to_le_bytes());
        let at = self.at.wrapping_add(16);
        let _rflags = write_virt(memory, tables, at, &rflags.to_le_bytes());
    }
}
