//! One vCPU: its thread, its exits, and the traps among them.

mod context;
mod deliver;
pub(crate) mod kick;
mod msr;
mod step_timer;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

pub use context::{ControlRegisters, VcpuAccessError, VcpuContext};
use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_BP, KVM_GUESTDBG_INJECT_DB,
    KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_SW_BP, KVM_SYSTEM_EVENT_CRASH,
    KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN, kvm_guest_debug, kvm_regs,
};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};

use crate::{
    devices::Devices,
    ending::{EndSignal, Ending},
    gate::{Gate, Hold},
    ram::GuestRam,
    sync::LockExt,
    trap::{self, BreakpointShape, INT3, InternalError, Trap, TrapHandler, Verdict},
    vcpu::{
        kick::{KickThreads, Kickable},
        step_timer::StepTimer,
    },
};

/// What all vCPUs of a guest share.
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    pub(crate) devices: Devices,
    pub(crate) ram: GuestRam,
    pub(crate) end: Arc<EndSignal>,
    pub(crate) kicks: Arc<KickThreads>,
}

/// A vCPU as KVM has it. Whoever holds its lock while it is out of guest mode
/// may look at it and change it.
pub(crate) struct Vcpu {
    index: u32,
    fd: VcpuFd,
    /// `KVM_CAP_SYNC_REGS` has the general registers.
    sync_regs: bool,
    /// `KVM_GUESTDBG_BLOCKIRQ` can be had.
    block_irq: bool,
    breakpoint_exits: bool,
    shape: BreakpointShape,
    /// What to add to the host's time stamp counter; none where it doesn't stay the same.
    tsc_offset: Option<u64>,
    /// Made by the thread that steps, at its first step.
    step_timer: Option<StepTimer>,
}

/// What one `KVM_RUN` came back with, its I/O done.
enum Exit {
    /// Nothing is left to do.
    Handled,
    /// A kick, or an unstarted vCPU woken for nothing.
    Interrupted,
    Trapped(Trap),
    /// KVM could not go on by itself.
    InternalError(InternalError),
    Ended(Ending),
}

/// Why a vCPU went out of guest mode.
#[derive(PartialEq, Eq)]
enum Left {
    /// It was asked to.
    Stopped,
    /// It must step one instruction with nobody else running.
    ToStepAlone,
}

impl Vcpu {
    pub(crate) fn new(index: u32, mut fd: VcpuFd, sync_regs: bool, block_irq: bool) -> Self {
        if sync_regs {
            fd.set_sync_valid_reg(SyncReg::Register);
        }
        let shape = BreakpointShape::DebugExit;
        Self {
            index,
            fd,
            sync_regs,
            block_irq,
            breakpoint_exits: false,
            shape,
            tsc_offset: None,
            step_timer: None,
        }
    }

    /// The general registers, of a vCPU that is out of guest mode.
    pub(crate) fn registers(&self) -> Result<kvm_regs, VcpuAccessError> {
        self.fd
            .get_regs()
            .map_err(|e| self.refused("read the registers", &e))
    }

    pub(crate) fn set_registers(&self, regs: &kvm_regs) -> Result<(), VcpuAccessError> {
        self.fd
            .set_regs(regs)
            .map_err(|e| self.refused("set the registers", &e))
    }

    pub(crate) fn control(&self) -> Result<ControlRegisters, VcpuAccessError> {
        let sregs = self
            .fd
            .get_sregs()
            .map_err(|e| self.refused("read the control registers", &e))?;
        Ok((&sregs).into())
    }

    /// The MSR LSTAR.
    pub(crate) fn syscall_entry(&self) -> Result<u64, VcpuAccessError> {
        const LSTAR: u32 = 0xc000_0082;
        msr::read(&self.fd, LSTAR).ok_or_else(|| self.refused("read LSTAR", &"no such MSR"))
    }

    /// Whether int3s of kernel and user mode leave guest mode as traps.
    pub(crate) fn set_breakpoint_exits(&mut self, on: bool) -> Result<(), VcpuAccessError> {
        self.breakpoint_exits = on;
        self.set_debug(0)
    }

    /// Sets what the guest is debugged for: breakpoints as they are switched, and
    /// `more` (`KVM_GUESTDBG_*`).
    fn set_debug(&self, more: u32) -> Result<(), VcpuAccessError> {
        let breakpoints = if self.breakpoint_exits {
            KVM_GUESTDBG_USE_SW_BP
        } else {
            0
        };
        let mut control = breakpoints | more;
        if control != 0 {
            control |= KVM_GUESTDBG_ENABLE;
        }
        let debug = kvm_guest_debug {
            control,
            ..Default::default()
        };
        self.fd
            .set_guest_debug(&debug)
            .map_err(|e| self.refused("set up the debugging", &e))
    }

    fn refused(&self, what: &'static str, cause: &impl ToString) -> VcpuAccessError {
        VcpuAccessError {
            vcpu: self.index,
            what,
            cause: cause.to_string(),
        }
    }

    /// Runs until the gate wants it out or it must step alone. With a hold it
    /// begins by stepping.
    fn run(
        &mut self,
        shared: &Shared,
        handler: &dyn TrapHandler,
        mut hold: Option<Hold<'_>>,
    ) -> Result<Left, VcpuAccessError> {
        self.tsc_offset = msr::steady_tsc_offset(&self.fd);
        if hold.is_some() && !self.begin_step(shared, handler)? {
            hold = None;
        }
        let mut to_step = false;
        loop {
            // Cleared before the gate is asked: a kick that comes later stays.
            self.fd.set_kvm_immediate_exit(0);
            let leaving = to_step || shared.gate.must_leave(self.index as usize);
            if leaving {
                // One more KVM_RUN completes a port or MMIO operation that user space
                // has answered and takes over changed registers
                // (Documentation/virt/kvm/api.rst, 5. "The kvm_run structure").
                self.fd.set_kvm_immediate_exit(1);
            }
            match self.run_once(&shared.devices) {
                Exit::Handled => {}
                Exit::Interrupted if leaving => break,
                Exit::Interrupted if self.step_went_astray()? => {
                    tracing::warn!(
                        vcpu = self.index,
                        "an instruction under a probe raised an exception while it was stepped"
                    );
                    // The step ends here, wherever its instruction has led.
                    self.trapped(shared, handler, Trap::Step, &mut hold, &mut to_step)?;
                }
                Exit::Interrupted => {}
                Exit::Ended(ending) => {
                    shared.end.end(ending);
                    break;
                }
                Exit::InternalError(error) => {
                    let regs = self.registers()?;
                    if self.byte_at(regs.rip, shared, &error) == Some(INT3) {
                        self.shape = BreakpointShape::EmulationFailure;
                        self.trapped(shared, handler, Trap::Breakpoint, &mut hold, &mut to_step)?;
                    } else {
                        shared.end.end(self.failed(&error, &regs));
                        break;
                    }
                }
                Exit::Trapped(trap) => {
                    self.trapped(shared, handler, trap, &mut hold, &mut to_step)?;
                }
            }
        }
        Ok(if to_step {
            Left::ToStepAlone
        } else {
            Left::Stopped
        })
    }

    fn run_once(&mut self, devices: &Devices) -> Exit {
        match self.fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => devices.port_write(port, data),
            Ok(VcpuExit::IoIn(port, data)) => devices.port_read(port, data),
            Ok(VcpuExit::MmioRead(_, data)) => data.fill(0xff),
            Ok(VcpuExit::MmioWrite(..)) => {}
            Ok(VcpuExit::Debug(debug)) => {
                return match trap::from_debug_exit(&debug) {
                    Some(trap) => Exit::Trapped(trap),
                    None => Exit::Ended(Ending::Failed {
                        reason: format!("a debug exit with exception {}", debug.exception),
                    }),
                };
            }
            Ok(VcpuExit::InternalError) => {
                return Exit::InternalError(InternalError::from_run(self.fd.get_kvm_run()));
            }
            Ok(VcpuExit::Intr) => return Exit::Interrupted,
            Ok(VcpuExit::Shutdown) => return Exit::Ended(Ending::TripleFault),
            Ok(VcpuExit::SystemEvent(kind, _)) => return Exit::Ended(system_event(kind)),
            Ok(VcpuExit::FailEntry(reason, cpu)) => {
                return Exit::Ended(Ending::Failed {
                    reason: format!(
                        "the CPU refused to enter the guest on host CPU {cpu} (reason {reason:#x})"
                    ),
                });
            }
            Ok(other) => {
                let reason = format!("vCPU {} left guest mode with {other:?}", self.index);
                return Exit::Ended(Ending::Failed { reason });
            }
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {
                return Exit::Interrupted;
            }
            Err(error) => {
                let reason = format!("KVM_RUN of vCPU {} failed: {error}", self.index);
                return Exit::Ended(Ending::Failed { reason });
            }
        }
        Exit::Handled
    }

    /// Asks the handler about a trap and does what it says.
    fn trapped(
        &mut self,
        shared: &Shared,
        handler: &dyn TrapHandler,
        trap: Trap,
        hold: &mut Option<Hold<'_>>,
        to_step: &mut bool,
    ) -> Result<(), VcpuAccessError> {
        let shape = self.shape;
        let mut context = self.context()?;
        let verdict = handler.trap(&mut context, &shared.ram, trap);
        let give_back = verdict == Verdict::GiveBack;
        let delivered =
            give_back && trap == Trap::Breakpoint && context.deliver_breakpoint(&shared.ram)?;
        let by_kvm = (give_back && !delivered).then_some((trap, shape));
        if by_kvm == Some((Trap::Breakpoint, BreakpointShape::EmulationFailure)) {
            context.inject_breakpoint_after()?;
        }
        match verdict {
            Verdict::PageFault {
                address,
                error_code,
            } => {
                context.inject_page_fault(address, error_code)?;
            }
            Verdict::Halt => context.halt()?,
            Verdict::Resume | Verdict::GiveBack | Verdict::StepAlone => {}
        }
        let (registers, dirty) = (context.registers, context.dirty);
        if dirty {
            // Registers that KVM takes over at KVM_RUN would throw away an exception
            // injected now; those of a plain resume need no system call.
            if self.sync_regs && (verdict == Verdict::Resume || delivered) {
                self.fd.sync_regs_mut().regs = registers;
                self.fd.set_sync_dirty_reg(SyncReg::Register);
            } else {
                self.set_registers(&registers)?;
            }
        }
        if verdict == Verdict::StepAlone {
            *to_step = hold.is_none();
            // A repeated string instruction: one more round.
            if *to_step || self.begin_step(shared, handler)? {
                return Ok(());
            }
        }
        if hold.is_some() {
            self.set_debug(0)?;
            if let Some(timer) = &mut self.step_timer {
                timer.disarm();
            }
            *hold = None;
        }
        match by_kvm {
            Some((Trap::Breakpoint, BreakpointShape::DebugExit)) => {
                self.set_debug(KVM_GUESTDBG_INJECT_BP)
            }
            Some((Trap::Step | Trap::Hardware { .. }, _)) => self.set_debug(KVM_GUESTDBG_INJECT_DB),
            _ => Ok(()),
        }
    }

    /// Prepares one step; false when the handler called it off.
    fn begin_step(
        &mut self,
        shared: &Shared,
        handler: &dyn TrapHandler,
    ) -> Result<bool, VcpuAccessError> {
        // Not from the shared page: the registers may have been set since.
        let registers = self.registers()?;
        let mut context = self.context_with(registers);
        let go = handler.before_step(&mut context, &shared.ram);
        let (registers, dirty) = (context.registers, context.dirty);
        if dirty {
            self.set_registers(&registers)?;
        }
        if go {
            let block_irq = if self.block_irq {
                KVM_GUESTDBG_BLOCKIRQ
            } else {
                0
            };
            self.set_debug(KVM_GUESTDBG_SINGLESTEP | block_irq)?;
            if self.step_timer.is_none() {
                let timer = StepTimer::new();
                self.step_timer = Some(timer.map_err(|e| self.refused("limit a step", &e))?);
            }
            if let Some(timer) = &mut self.step_timer {
                timer.arm(registers.rip);
            }
        }
        Ok(go)
    }

    /// Whether a step has used up its time and led elsewhere: a host that is only
    /// slow has not executed the instruction yet.
    fn step_went_astray(&self) -> Result<bool, VcpuAccessError> {
        match &self.step_timer {
            Some(timer) if timer.expired() => Ok(self.registers()?.rip != timer.start()),
            _ => Ok(false),
        }
    }

    fn context(&mut self) -> Result<VcpuContext<'_>, VcpuAccessError> {
        let registers = if self.sync_regs {
            self.fd.sync_regs().regs
        } else {
            self.registers()?
        };
        Ok(self.context_with(registers))
    }

    fn context_with(&self, registers: kvm_regs) -> VcpuContext<'_> {
        VcpuContext {
            index: self.index,
            fd: &self.fd,
            registers,
            dirty: false,
            tsc_offset: self.tsc_offset,
        }
    }

    /// The instruction byte at `rip`: as KVM gave it, else from guest memory.
    fn byte_at(&self, rip: u64, shared: &Shared, error: &InternalError) -> Option<u8> {
        if error.suberror != InternalError::EMULATION {
            return None;
        }
        if let Some(byte) = error.instruction.first() {
            return Some(*byte);
        }
        let place = self.fd.translate_gva(rip).ok().filter(|t| t.valid != 0)?;
        let mut byte = [0];
        shared.ram.read(place.physical_address, &mut byte).ok()?;
        Some(byte[0])
    }

    fn failed(&self, error: &InternalError, regs: &kvm_regs) -> Ending {
        let reason = if error.suberror == InternalError::EMULATION {
            format!(
                "KVM could not emulate an instruction of vCPU {} at {:#x} (bytes {:02x?}); \
                 `vmprobe doctor` tells whether this host's KVM runs Linux",
                self.index, regs.rip, error.instruction
            )
        } else {
            format!(
                "KVM gave up on vCPU {} at {:#x}: internal error {}",
                self.index, regs.rip, error.suberror
            )
        };
        Ending::Failed { reason }
    }
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

/// Body of a vCPU's thread: runs it whenever the gate lets it, until the guest
/// ends.
pub(crate) fn run_thread(
    index: usize,
    cell: &Mutex<Vcpu>,
    shared: &Shared,
    handler: &dyn TrapHandler,
) {
    let outcome = catch_unwind(AssertUnwindSafe(|| -> Result<(), VcpuAccessError> {
        // Not kept locked: a stopped vCPU is for others to look at.
        let _kickable = Kickable::new(&shared.kicks, index, &mut cell.locked().fd);
        let mut left = Left::Stopped;
        loop {
            let hold = if left == Left::ToStepAlone {
                let Some(hold) = shared.gate.enter_alone(index) else {
                    return Ok(());
                };
                Some(hold)
            } else if shared.gate.enter(index) {
                None
            } else {
                return Ok(());
            };
            let result = cell.locked().run(shared, handler, hold);
            shared.gate.leave(index);
            left = result?;
        }
    }));
    let failure = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the thread of vCPU {index} panicked: a bug of the monitor"),
    };
    shared.end.end(Ending::Failed { reason: failure });
    shared.gate.leave(index);
}
