//! Running a vCPU: its exits, the traps among them, and steps.

use guest_state::x86_64::INT3;
use guest_state::{
    Action, GuestMemory, GuestPhysAddr, GuestVirtAddr, Step, StepEnd, Trap, TrapHandler, Vcpu,
    VcpuError,
};
use kvm_bindings::{KVM_SYSTEM_EVENT_CRASH, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN};
use kvm_ioctls::VcpuExit;

use super::{kvm_vcpu::KvmVcpu, shared::Shared, step_timer::StepTimer};
use crate::{
    ending::Ending,
    exits::ExitKind,
    gate::Hold,
    ram::GuestRam,
    x86_64::{
        prefetch::prefetch,
        vcpu::{
            context::VcpuContext,
            exit::{BreakpointExit, DebugExit, InternalError},
            guest_debug::{DR6_SINGLE_STEP, DebugEvent, StepUnderWay},
            msr,
            reinject::{Reinjected, reinject},
        },
    },
};

/// Why a vCPU's thread has to go back to the gate.
pub(super) enum LeaveReason {
    /// The gate wants the vCPU out, or the guest has ended.
    Stopped,
    /// The vCPU must step one instruction while no other vCPU runs.
    ToStepAlone(Step),
    /// The trap handler holds the vCPU.
    Held,
}

/// What a vCPU does first when the gate has let it in.
pub(super) enum Begin<'g> {
    /// It goes on where it left off.
    Run,
    /// A step while no other vCPU runs, as long as the hold is kept.
    Alone(Hold<'g>, Step),
    /// The answer to [`Trap::Released`].
    Released,
    /// The answer to [`Trap::StepWanted`].
    StepWanted,
}

/// What one `KVM_RUN` returned with. Its I/O is done.
enum RunExit {
    /// Nothing is left to do.
    Handled,
    /// A kick, or an unstarted vCPU woken for nothing.
    Interrupted,
    Trapped(DebugExit),
    /// KVM could not go on by itself.
    InternalError(InternalError),
    Ended(Ending),
}

impl KvmVcpu {
    /// Runs the vCPU until the gate wants it out, it must step alone or it is held.
    pub(super) fn run(
        &mut self,
        shared: &Shared,
        handler: &dyn TrapHandler,
        begin: Begin<'_>,
    ) -> Result<LeaveReason, VcpuError> {
        self.tsc_offset = msr::steady_tsc_offset(&self.fd);
        let (mut hold, mut leave) = (None, None);
        match begin {
            Begin::Alone(taken, asked) => {
                if self.begin_step_alone(shared, handler, asked)? {
                    hold = Some(taken);
                }
            }
            Begin::Released => {
                self.trapped(shared, handler, DebugEvent::Released, &mut hold, &mut leave)?;
            }
            Begin::Run | Begin::StepWanted if self.debugging.step.is_some() => {
                // The time out of guest mode doesn't count.
                self.time_step(true)?;
            }
            Begin::StepWanted => {
                self.wake()?;
                let event = DebugEvent::StepWanted;
                self.trapped(shared, handler, event, &mut hold, &mut leave)?;
            }
            Begin::Run => {}
        }
        loop {
            // Cleared before the gate is asked: a kick that comes later stays.
            self.fd.set_kvm_immediate_exit(0);
            let leaving = leave.is_some() || shared.gate.must_leave(self.id.0 as usize);
            if leaving {
                // One more KVM_RUN completes a port or MMIO operation that user space
                // has answered and takes over changed registers
                // (Documentation/virt/kvm/api.rst, 5. "The kvm_run structure").
                self.fd.set_kvm_immediate_exit(1);
            }
            let event = match self.run_once(shared) {
                RunExit::Handled => continue,
                RunExit::Interrupted if leaving => break,
                RunExit::Interrupted if self.step_went_astray()? => DebugEvent::Astray,
                RunExit::Interrupted => continue,
                RunExit::Ended(ending) => {
                    shared.end.end(ending);
                    break;
                }
                RunExit::InternalError(error) => {
                    let rip = self.rip()?;
                    fetch_for(handler, rip);
                    if self.byte_at(rip, shared, &error) != Some(INT3) {
                        shared.exits.count(ExitKind::Other);
                        shared.end.end(self.failed(&error, rip));
                        break;
                    }
                    shared.exits.count(ExitKind::Breakpoint);
                    self.breakpoint_exit = BreakpointExit::EmulationFailure;
                    DebugEvent::Breakpoint
                }
                RunExit::Trapped(DebugExit::Breakpoint { at }) => {
                    fetch_for(handler, at);
                    DebugEvent::Breakpoint
                }
                RunExit::Trapped(DebugExit::Debug { dr6 }) => DebugEvent::Debug {
                    dr6,
                    cause: self.debugging.cause(dr6),
                },
            };
            self.trapped(shared, handler, event, &mut hold, &mut leave)?;
        }
        if self.debugging.step.is_some() {
            self.time_step(false)?;
        }
        Ok(leave.unwrap_or(LeaveReason::Stopped))
    }

    fn run_once(&mut self, shared: &Shared) -> RunExit {
        let bus = &shared.bus;
        let (kind, exit) = match self.fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => {
                bus.port_write(port, data);
                (ExitKind::PortIo, RunExit::Handled)
            }
            Ok(VcpuExit::IoIn(port, data)) => {
                bus.port_read(port, data);
                (ExitKind::PortIo, RunExit::Handled)
            }
            Ok(VcpuExit::MmioRead(address, data)) => {
                bus.mmio_read(address, data);
                (ExitKind::Mmio, RunExit::Handled)
            }
            Ok(VcpuExit::MmioWrite(address, data)) => {
                bus.mmio_write(address, data);
                (ExitKind::Mmio, RunExit::Handled)
            }
            Ok(VcpuExit::Debug(debug)) => match DebugExit::new(&debug) {
                Some(exit) => (self.kind(exit), RunExit::Trapped(exit)),
                None => failed(format!("a debug exit with exception {}", debug.exception)),
            },
            Ok(VcpuExit::InternalError) => {
                // The caller counts it when it knows whether it is an int3.
                return RunExit::InternalError(InternalError::from_run(self.fd.get_kvm_run()));
            }
            Ok(VcpuExit::Intr) => (ExitKind::Interrupted, RunExit::Interrupted),
            Ok(VcpuExit::Shutdown) => (ExitKind::Other, RunExit::Ended(Ending::TripleFault)),
            Ok(VcpuExit::SystemEvent(kind, _)) => {
                (ExitKind::Other, RunExit::Ended(system_event(kind)))
            }
            Ok(VcpuExit::FailEntry(reason, cpu)) => failed(format!(
                "the CPU refused to enter the guest on host CPU {cpu} (reason {reason:#x})"
            )),
            Ok(other) => failed(format!("vCPU {} left guest mode with {other:?}", self.id)),
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {
                (ExitKind::Interrupted, RunExit::Interrupted)
            }
            Err(error) => failed(format!("KVM_RUN of vCPU {} failed: {error}", self.id)),
        };
        shared.exits.count(kind);
        exit
    }

    fn kind(&self, exit: DebugExit) -> ExitKind {
        match exit {
            DebugExit::Breakpoint { .. } => ExitKind::Breakpoint,
            DebugExit::Debug { dr6 } if self.is_single_step(dr6) => ExitKind::Step,
            DebugExit::Debug { .. } => ExitKind::Hardware,
        }
    }

    fn is_single_step(&self, dr6: u64) -> bool {
        self.debugging.step.is_some() && dr6 & DR6_SINGLE_STEP != 0
    }

    /// Asks the handler about an event and does what it says. Sets `leave` if the
    /// vCPU must go back to the gate.
    fn trapped(
        &mut self,
        shared: &Shared,
        handler: &dyn TrapHandler,
        event: DebugEvent,
        hold: &mut Option<Hold<'_>>,
        leave: &mut Option<LeaveReason>,
    ) -> Result<(), VcpuError> {
        let breakpoint_exit = self.breakpoint_exit;
        let mut context = match event {
            DebugEvent::Released | DebugEvent::StepWanted => self.context_now()?,
            _ => self.context()?,
        };
        let action = event.tell(|trap| handler.trap(&mut context, &shared.ram, trap));
        let done = match action {
            // Nearly all answers are of this kind.
            Action::Resume if context.step.is_none() => CarriedOut::RESUMED,
            _ => carry_out(
                &mut context,
                (action, event),
                breakpoint_exit,
                (handler, &shared.ram),
            )?,
        };
        let (start, dirty, pause) = (context.registers().rip, context.dirty, context.pause);
        if dirty {
            self.hand_over(done.is_plain)?;
        }
        if pause {
            shared.gate.pause_soon();
        }
        if done.ends_step {
            self.end_step()?;
        }
        if let Action::Step(asked) = action {
            let begun = if !asked.alone {
                self.begin_step(start, asked)?;
                *hold = None;
                true
            } else if hold.is_some() {
                self.begin_step_alone(shared, handler, asked)?
            } else {
                if done.ends_step || self.debugging.step.is_some() {
                    // The new step may yet be called off.
                    self.end_step()?;
                    self.set_debug(0)?;
                }
                *leave = Some(LeaveReason::ToStepAlone(asked));
                return Ok(());
            };
            if begun {
                return Ok(());
            }
        }
        if done.ends_step || done.inject != 0 {
            self.set_debug(done.inject)?;
        }
        if self.debugging.step.is_none() {
            *hold = None;
        }
        if action == Action::Hold {
            *leave = Some(LeaveReason::Held);
        }
        Ok(())
    }

    /// Prepares a step while no other vCPU runs. Returns false if the handler calls it
    /// off.
    fn begin_step_alone(
        &mut self,
        shared: &Shared,
        handler: &dyn TrapHandler,
        asked: Step,
    ) -> Result<bool, VcpuError> {
        let mut context = self.context_now()?;
        let go = handler.before_step(&mut context, &shared.ram);
        let (start, dirty) = (context.registers().rip, context.dirty);
        if dirty {
            self.hand_over(false)?;
        }
        if go {
            self.begin_step(start, asked)?;
        }
        Ok(go)
    }

    /// Prepares a step of the instruction at `start`, where RIP is.
    fn begin_step(&mut self, start: u64, asked: Step) -> Result<(), VcpuError> {
        self.debugging.step = Some(StepUnderWay { asked, start });
        self.set_debug(0)?;
        self.time_step(true)
    }

    /// Forgets the step. The caller tells KVM afterwards.
    fn end_step(&mut self) -> Result<(), VcpuError> {
        self.debugging.step = None;
        self.time_step(false)
    }

    fn time_step(&mut self, on: bool) -> Result<(), VcpuError> {
        if on && self.step_timer.is_none() {
            let timer = StepTimer::new();
            self.step_timer = Some(timer.map_err(|e| self.refused("limit a step", &e))?);
        }
        match &mut self.step_timer {
            Some(timer) if on => timer.arm(),
            Some(timer) => timer.disarm(),
            None => {}
        }
        Ok(())
    }

    /// Returns true if a step has used up its time and RIP isn't at its instruction any more. If RIP is still there,
    /// the host is only slow.
    fn step_went_astray(&self) -> Result<bool, VcpuError> {
        match (&self.step_timer, &self.debugging.step) {
            (Some(timer), Some(step)) if timer.expired() => Ok(self.registers()?.rip != step.start),
            _ => Ok(false),
        }
    }

    /// The instruction byte at `rip`: as KVM gave it, else from guest memory.
    fn byte_at(&self, rip: u64, shared: &Shared, error: &InternalError) -> Option<u8> {
        if error.suberror != InternalError::EMULATION {
            return None;
        }
        if let Some(byte) = error.instruction().first() {
            return Some(*byte);
        }
        let place = self.fd.translate_gva(rip).ok().filter(|t| t.valid != 0)?;
        let mut byte = [0];
        let at = GuestPhysAddr(place.physical_address);
        shared.ram.read(at, &mut byte).ok()?;
        Some(byte[0])
    }

    fn failed(&self, error: &InternalError, rip: u64) -> Ending {
        let reason = if error.suberror == InternalError::EMULATION {
            format!(
                "KVM could not emulate an instruction of vCPU {} at {:#x} (bytes {:02x?}); \
                 `vmprobe doctor` tells whether this host's KVM runs Linux",
                self.id,
                rip,
                error.instruction()
            )
        } else {
            format!(
                "KVM gave up on vCPU {} at {:#x}: internal error {}",
                self.id, rip, error.suberror
            )
        };
        Ending::Failed { reason }
    }
}

/// Prefetches what the handler reads first in its answer to an int3 at `rip`.
#[inline]
fn fetch_for(handler: &dyn TrapHandler, rip: u64) {
    if let Some(address) = handler.first_look(GuestVirtAddr(rip)) {
        prefetch(address);
    }
}

/// What is left to do when a handler's answer has been carried out on the context.
struct CarriedOut {
    /// KVM injects an exception when it is given these `KVM_GUESTDBG_INJECT_*`.
    inject: u32,
    /// Nothing is injected.
    is_plain: bool,
    /// The step under way has ended.
    ends_step: bool,
}

impl CarriedOut {
    /// The vCPU resumes, and no step is under way.
    const RESUMED: Self = Self {
        inject: 0,
        is_plain: true,
        ends_step: false,
    };
}

/// Does with a trapped vCPU what the answer to an event says, as far as that concerns its state. It is apart from its
/// caller, as its code isn't needed where the vCPU only resumes.
#[inline(never)]
fn carry_out(
    context: &mut VcpuContext<'_>,
    (action, event): (Action, DebugEvent),
    breakpoint_exit: BreakpointExit,
    (handler, ram): (&dyn TrapHandler, &GuestRam),
) -> Result<CarriedOut, VcpuError> {
    let reinjected = match action {
        Action::Reinject => Some(reinject(context, event, breakpoint_exit, ram)?),
        _ => None,
    };
    let inject = match reinjected {
        Some(Reinjected::Asked(flags)) => flags,
        _ => 0,
    };
    let mut ends_step = event.ends_step();
    if inject != 0 && !ends_step && context.step.is_some() {
        // Telling KVM would begin the step anew, at RIP as it is now. The step
        // has led into the guest's user mode or its own debugging.
        handler.trap(context, ram, Trap::Step(StepEnd::Astray));
        ends_step = true;
    }
    match action {
        Action::PageFault {
            address,
            error_code,
        } => {
            context.inject_page_fault(address, error_code)?;
        }
        Action::Halt => context.halt()?,
        Action::Resume | Action::Reinject | Action::Step(_) | Action::Hold => {}
    }
    let is_plain = action == Action::Resume || reinjected == Some(Reinjected::Delivered);
    Ok(CarriedOut {
        inject,
        is_plain,
        ends_step,
    })
}

fn failed(reason: String) -> (ExitKind, RunExit) {
    (ExitKind::Other, RunExit::Ended(Ending::Failed { reason }))
}

fn system_event(kind: u32) -> Ending {
    match kind {
        KVM_SYSTEM_EVENT_SHUTDOWN => Ending::PowerOff,
        KVM_SYSTEM_EVENT_RESET => Ending::Reset,
        KVM_SYSTEM_EVENT_CRASH => Ending::Panic {
            reason: "the guest told the hypervisor so".to_owned(),
        },
        _ => Ending::Failed {
            reason: format!("system event {kind}"),
        },
    }
}
