//! A client that debugs the guest.

use std::collections::BTreeMap;
use std::sync::Arc;

use guest_state::{Access, GuestVirtAddr, StoppedGuest, VcpuId};
use probe_engine::action::HitAction;
use probe_engine::engine::{Debugger, Stop, StopReason};
use probe_engine::probe::{Capture, Options, Place, ProbeId, ProbeKind, ProbeSpec};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::Status;
use vmm::{StoppedVm, VmState};
use vmprobe_proto::v1;

use super::Machine;
use super::inspect::page_tables;
use super::probes::retried;
use crate::status::{Precondition, Resource};
use crate::{convert, limits, status};

/// Hands stops on to the client's stream. There are few of them, as the guest is paused at the first.
struct Telling(UnboundedSender<Stop>);

impl Debugger for Telling {
    fn stopped(&self, stop: Stop) {
        // If the client has gone, it is soon detached.
        let _ = self.0.send(stop);
    }
}

/// A breakpoint, as its client names it.
type Key = (v1::BreakpointKind, u64, u32);

/// A client debugs the guest as long as this value exists.
pub struct DebugSession {
    machine: Arc<Machine>,
    breakpoints: BTreeMap<Key, ProbeId>,
    /// True if the VM was paused before, and the debugger hasn't let it go on.
    stays_paused: bool,
}

impl Machine {
    /// Pauses the guest for a debugger. Blocks.
    ///
    /// # Errors
    /// The guest has ended, or there is another debugger.
    pub fn debug(self: &Arc<Self>) -> Result<(DebugSession, UnboundedReceiver<Stop>), Status> {
        let state = self.vm.state();
        if state == VmState::Ended {
            return Err(self.state_error(&vmm::StateError::Ended));
        }
        let (to, stops) = unbounded_channel();
        let attached = self.engine.attach_debugger(Arc::new(Telling(to)));
        attached.map_err(|error| {
            let why = format!("VM `{}`: {error}", self.name);
            status::exists(Resource::Debugger, &self.name, why)
        })?;
        // From here on, dropping this lets the guest go on.
        let session = DebugSession {
            machine: Arc::clone(self),
            breakpoints: BTreeMap::new(),
            stays_paused: state != VmState::Running,
        };
        if state != VmState::Created {
            self.pause()?;
        }
        Ok((session, stops))
    }
}

impl DebugSession {
    /// The number of vCPUs.
    pub fn vcpus(&self) -> u32 {
        self.machine.config.vcpus
    }

    /// Returns the registers of a vCPU. Blocks.
    ///
    /// # Errors
    /// There is no such vCPU, or it can't be read.
    pub fn registers(&self, vcpu: u32) -> Result<v1::VcpuState, Status> {
        self.machine.check_vcpu(vcpu)?;
        self.machine
            .stopped(|stopped| self.machine.vcpu_state(stopped, VcpuId(vcpu)))
    }

    /// Sets the general registers of a vCPU. Blocks.
    ///
    /// # Errors
    /// The server's owner has not allowed it, there is no such vCPU, or it can't be changed.
    pub fn set_registers(&self, asked: &v1::WriteVcpu) -> Result<(), Status> {
        let machine = &self.machine;
        machine.may_change_guest("write_vcpu")?;
        machine.check_vcpu(asked.vcpu)?;
        let mut wanted = convert::general(&asked.registers.unwrap_or_default());
        machine.stopped(|stopped| {
            let now = stopped.registers(VcpuId(asked.vcpu));
            let now = now.map_err(|error| status::vcpu(&error))?.rip;
            // The vCPU stays where it is, which may be a copy of the instruction.
            if wanted.rip == machine.engine.stands_at(GuestVirtAddr(now)).0 {
                wanted.rip = now;
            }
            let set = stopped.set_registers(VcpuId(asked.vcpu), &wanted);
            set.map_err(|error| status::vcpu(&error))
        })
    }

    /// Returns guest memory as a vCPU sees it. Blocks.
    ///
    /// # Errors
    /// There is no such vCPU, or that is too much memory.
    pub fn read(&self, asked: &v1::ReadDebuggedMemory) -> Result<Vec<u8>, Status> {
        let most = limits::DEBUG_READ_BYTES;
        if asked.length > most {
            let why = format!("at most {most} bytes at a time");
            return Err(status::invalid("read_memory.length", why));
        }
        self.machine
            .read_memory(asked.vcpu, asked.address, asked.length, false)
    }

    /// Writes guest memory as a vCPU sees it. Blocks.
    ///
    /// # Errors
    /// The server's owner has not allowed it, there is no such vCPU, or the guest's kernel couldn't write there.
    pub fn write(&self, asked: &v1::WriteDebuggedMemory) -> Result<(), Status> {
        let machine = &self.machine;
        machine.may_change_guest("write_memory")?;
        machine.check_vcpu(asked.vcpu)?;
        if !limits::DEBUG_WRITE_BYTES.contains(&asked.data.len()) {
            let most = limits::DEBUG_WRITE_BYTES.end();
            let why = format!("1 to {most} bytes at a time");
            return Err(status::invalid("write_memory.data", why));
        }
        let at = GuestVirtAddr(asked.address);
        machine.stopped(|stopped| {
            let tables = page_tables(stopped, VcpuId(asked.vcpu))?;
            let written = machine
                .engine
                .write_memory(stopped.memory(), tables, at, &asked.data);
            written.map_err(|why| {
                status::precondition(Precondition::State, "guest memory", why.to_string())
            })
        })
    }

    /// Sets a breakpoint. Blocks.
    ///
    /// # Errors
    /// No breakpoint is possible there, or there are too many.
    pub fn set(&mut self, asked: v1::Breakpoint) -> Result<(), Status> {
        let key = key(&asked);
        if self.breakpoints.contains_key(&key) {
            return Ok(());
        }
        if self.breakpoints.len() >= limits::BREAKPOINTS {
            let most = limits::BREAKPOINTS;
            let why = format!("a debugger has at most {most} breakpoints: remove some");
            return Err(status::exhausted("breakpoints of one debugger", why));
        }
        let len = u8::try_from(asked.length);
        let len = len.map_err(|_| {
            let why = "watched data has 1, 2, 4 or 8 bytes";
            status::invalid("set_breakpoint.breakpoint.length", why)
        })?;
        let watch = |len, access| ProbeKind::Watch { len, access };
        let hardware = watch(1, Access::Execute);
        let id = match asked.kind() {
            v1::BreakpointKind::Unspecified => {
                return Err(status::invalid(
                    "set_breakpoint.breakpoint.kind",
                    "the kind of the breakpoint is missing",
                ));
            }
            v1::BreakpointKind::Software => {
                let placed = self.machine.place_breakpoint(asked.address, ProbeKind::PRE);
                placed.or_else(|why| {
                    // In text that the guest patches itself, or where no probe may be, a debug register still works.
                    let placed = self.machine.place_breakpoint(asked.address, hardware);
                    placed.map_err(|_| why)
                })
            }
            v1::BreakpointKind::Hardware => self.machine.place_breakpoint(asked.address, hardware),
            v1::BreakpointKind::Write => {
                let kind = watch(len, Access::Write);
                self.machine.place_breakpoint(asked.address, kind)
            }
            v1::BreakpointKind::Access => {
                let kind = watch(len, Access::ReadWrite);
                self.machine.place_breakpoint(asked.address, kind)
            }
        }?;
        self.machine.engine.set_debuggers(id, true);
        self.breakpoints.insert(key, id);
        Ok(())
    }

    /// Removes a breakpoint. Blocks.
    ///
    /// # Errors
    /// There is no such breakpoint.
    pub fn remove(&mut self, asked: &v1::Breakpoint) -> Result<(), Status> {
        let Some(id) = self.breakpoints.remove(&key(asked)) else {
            let (address, why) = (
                format!("{:#x}", asked.address),
                "there is no such breakpoint",
            );
            return Err(status::missing(Resource::Breakpoint, &address, why));
        };
        self.machine.remove_breakpoints(&[id])
    }

    /// Makes a vCPU execute one instruction, and doesn't wait until it has done so. Blocks.
    ///
    /// # Errors
    /// There is no such vCPU, or the VM isn't paused.
    pub fn step(&self, vcpu: u32) -> Result<(), Status> {
        let machine = &self.machine;
        machine.check_vcpu(vcpu)?;
        let wanted =
            machine.stopped(|stopped| machine.engine.step_for_debugger(stopped, VcpuId(vcpu)));
        wanted.map_err(|error| status::vcpu(&error))?;
        machine.vm.step(VcpuId(vcpu)).map_err(|error| {
            machine.engine.step_no_more();
            machine.state_error(&error)
        })
    }

    /// Lets the guest go on, and doesn't wait until it stops. Blocks.
    ///
    /// # Errors
    /// The guest has ended, or can't be started.
    pub fn go_on(&mut self) -> Result<(), Status> {
        self.stays_paused = false;
        match self.machine.vm.state() {
            VmState::Created => self.machine.start(),
            _ => self.machine.resume(),
        }
    }

    /// Stops all vCPUs; they stand still when it returns. Blocks.
    ///
    /// # Errors
    /// The guest has ended.
    pub fn stop(&self) -> Result<(), Status> {
        self.machine.pause()?;
        self.machine.engine.step_no_more();
        Ok(())
    }

    /// Returns the client's message of a stop, or `None` if its breakpoint is gone.
    pub fn told(&self, stop: Stop) -> Option<v1::GuestStopped> {
        let (reason, breakpoint) = match stop.reason {
            StopReason::Stepped => (v1::StopReason::Stepped, None),
            StopReason::Breakpoint(id) | StopReason::Watchpoint(id) => {
                let (&(kind, address, length), _) =
                    self.breakpoints.iter().find(|(_, other)| **other == id)?;
                let breakpoint = v1::Breakpoint {
                    kind: kind.into(),
                    address,
                    length,
                };
                (v1::StopReason::Breakpoint, Some(breakpoint))
            }
        };
        Some(v1::GuestStopped {
            reason: reason.into(),
            vcpu: stop.vcpu.0,
            breakpoint,
        })
    }
}

/// The guest goes on, without breakpoints.
impl Drop for DebugSession {
    fn drop(&mut self) {
        let machine = &self.machine;
        let has_run = machine.vm.state() != VmState::Created;
        if has_run {
            // After the pause, no vCPU is in the middle of an instruction that the debugger has it execute.
            let _it_may_have_ended = machine.pause();
        }
        machine.engine.detach_debugger();
        let ids: Vec<ProbeId> = self.breakpoints.values().copied().collect();
        if let Err(why) = machine.remove_breakpoints(&ids) {
            tracing::warn!(vm = machine.name, "a debugger's breakpoints stay: {why}");
        }
        if has_run && !self.stays_paused {
            let _it_may_have_ended = machine.resume();
        }
    }
}

impl Machine {
    /// Returns what a debugger is told of a vCPU.
    pub(super) fn vcpu_state(
        &self,
        stopped: &StoppedVm<'_>,
        vcpu: VcpuId,
    ) -> Result<v1::VcpuState, Status> {
        let read = || {
            let mut registers = stopped.registers(vcpu)?;
            registers.rip = self.engine.stands_at(GuestVirtAddr(registers.rip)).0;
            let (control, segments) = (stopped.control(vcpu)?, stopped.segments(vcpu)?);
            let fpu = stopped.fpu(vcpu)?;
            Ok(convert::vcpu_state(&registers, &control, &segments, &fpu))
        };
        read().map_err(|error| status::vcpu(&error))
    }

    fn place_breakpoint(&self, address: u64, kind: ProbeKind) -> Result<ProbeId, Status> {
        let specs = [ProbeSpec {
            name: Some(format!("debugger-{}-{address:#x}", means(kind))),
            place: Place::Address(GuestVirtAddr(address)),
            kind,
            enabled: true,
            options: Options {
                capture: Capture::Count,
                // An action makes sure that it never becomes a jump.
                actions: Arc::new([HitAction::Pause]),
                ..Options::default()
            },
        }];
        let _alone = self.changing.lock();
        self.check_room(1)?;
        let mut draft = self.engine.draft(&self.memory, &specs);
        let mut register = |stopped: &StoppedVm<'_>| {
            let registered = self.engine.register_drafted(stopped, &mut draft);
            let registered = registered.map_err(|error| status::register(&error, &[]));
            registered.map(|_| ())
        };
        retried(|| self.change(&mut register))?;
        let id = draft.registered().first().copied();
        id.ok_or_else(|| Status::internal("a breakpoint got no number"))
    }

    fn remove_breakpoints(&self, ids: &[ProbeId]) -> Result<(), Status> {
        for id in ids {
            self.engine.set_debuggers(*id, false);
        }
        // Another client may have removed one.
        let there = self.engine.list();
        let is_there = |id: &u64| there.iter().any(|probe| probe.id.0 == *id);
        let ids: Vec<u64> = ids.iter().map(|id| id.0).filter(is_there).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let selector = v1::ProbeSelector {
            ids,
            ..v1::ProbeSelector::default()
        };
        self.unregister(&selector).map(drop)
    }
}

/// Returns a word for the names of breakpoints.
fn means(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Watch {
            access: Access::Execute,
            ..
        } => "hbreak",
        ProbeKind::Watch {
            access: Access::Write,
            ..
        } => "watch",
        ProbeKind::Watch {
            access: Access::ReadWrite,
            ..
        } => "awatch",
        ProbeKind::Instruction { .. } | ProbeKind::Return { .. } | ProbeKind::Exits { .. } => {
            "break"
        }
    }
}

fn key(breakpoint: &v1::Breakpoint) -> Key {
    (breakpoint.kind(), breakpoint.address, breakpoint.length)
}
