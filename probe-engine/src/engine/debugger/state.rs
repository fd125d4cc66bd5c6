//! The debugger of the guest, and what it has asked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest_state::{GuestVirtAddr, VcpuId};
use thiserror::Error;

use crate::engine::lock::{Lock, Rank};
use crate::probe::ProbeId;

/// How many instructions of ours a vCPU executes at most before the engine no longer expects it to come to one of the
/// guest's. The longest detour has some hundred.
const OURS_MOST: u32 = 10_000;

/// Why a vCPU stands still for a debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It has come to a breakpoint, whose instruction it has not executed.
    Breakpoint(ProbeId),
    /// It has accessed watched data, or come to an instruction whose execution is watched for.
    Watchpoint(ProbeId),
    /// It has executed the one instruction that was asked for.
    Stepped,
}

/// A vCPU that stands still for a debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Which one.
    pub vcpu: VcpuId,
    /// Why.
    pub reason: StopReason,
}

/// Is told of stops.
pub trait Debugger: Send + Sync {
    /// A vCPU stops, and the guest is about to be paused. Called on the vCPU's thread: be quick, and wait for nothing.
    fn stopped(&self, stop: Stop);
}

/// Why a guest can't be debugged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DebuggerError {
    /// Another debugger is attached already.
    #[error("another debugger is attached; detach that one first")]
    Attached,
}

/// A step of one instruction that the debugger has asked for.
#[derive(Debug)]
struct Wanted {
    vcpu: VcpuId,
    /// Where in the guest's text it begins.
    from: GuestVirtAddr,
    /// The instruction that KVM steps for it, if there is one.
    under_way: Option<Stepped>,
    /// How many instructions have been executed for it.
    done: u32,
}

/// An instruction that KVM steps for a debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stepped {
    /// True for `syscall`, which saves the flags in R11.
    pub(crate) is_syscall: bool,
}

#[derive(Default)]
struct Who {
    debugger: Option<Arc<dyn Debugger>>,
    probes: BTreeSet<ProbeId>,
    wanted: Option<Wanted>,
}

/// See the module's text.
pub(crate) struct DebuggerState {
    /// True while a debugger is attached. So a trap of a guest without a debugger takes no lock.
    attached: AtomicBool,
    who: Lock<Who>,
}

impl DebuggerState {
    pub(crate) fn new() -> Self {
        Self {
            attached: AtomicBool::new(false),
            who: Lock::new(Rank::Debugger, Who::default()),
        }
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self, debugger: Arc<dyn Debugger>) -> Result<(), DebuggerError> {
        let mut who = self.who.lock();
        if who.debugger.is_some() {
            return Err(DebuggerError::Attached);
        }
        *who = Who {
            debugger: Some(debugger),
            ..Who::default()
        };
        self.attached.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn detach(&self) {
        let mut who = self.who.lock();
        *who = Who::default();
        self.attached.store(false, Ordering::Release);
    }

    /// Sets whether hits of a probe stop for the debugger.
    pub(crate) fn own(&self, probe: ProbeId, owned: bool) {
        let probes = &mut self.who.lock().probes;
        match owned {
            true => probes.insert(probe),
            false => probes.remove(&probe),
        };
    }

    pub(crate) fn owns(&self, probe: ProbeId) -> bool {
        self.is_attached() && self.who.lock().probes.contains(&probe)
    }

    /// Has a vCPU execute one instruction.
    pub(crate) fn want_step(&self, vcpu: VcpuId, from: GuestVirtAddr) {
        self.who.lock().wanted = Some(Wanted {
            vcpu,
            from,
            under_way: None,
            done: 0,
        });
    }

    /// Has no vCPU execute an instruction any more.
    pub(crate) fn want_no_step(&self) {
        self.who.lock().wanted = None;
    }

    /// Where the step began that a vCPU is to make.
    pub(crate) fn steps_from(&self, vcpu: VcpuId) -> Option<GuestVirtAddr> {
        let who = self.who.lock();
        let wanted = who.wanted.as_ref().filter(|wanted| wanted.vcpu == vcpu)?;
        Some(wanted.from)
    }

    /// Counts one more instruction that is executed for the step of a vCPU. Returns false if there are too many.
    pub(crate) fn count(&self, vcpu: VcpuId) -> bool {
        let mut who = self.who.lock();
        let wanted = who.wanted.as_mut().filter(|wanted| wanted.vcpu == vcpu);
        wanted.is_some_and(|wanted| {
            wanted.done += 1;
            wanted.done < OURS_MOST
        })
    }

    /// Notes that KVM steps an instruction for the debugger.
    pub(crate) fn begin(&self, vcpu: VcpuId, stepped: Stepped) {
        let mut who = self.who.lock();
        if let Some(wanted) = who.wanted.as_mut().filter(|wanted| wanted.vcpu == vcpu) {
            wanted.under_way = Some(stepped);
        }
    }

    /// Ends the step that KVM makes for the debugger, and returns its instruction.
    pub(crate) fn end(&self, vcpu: VcpuId) -> Option<Stepped> {
        let mut who = self.who.lock();
        let wanted = who.wanted.as_mut().filter(|wanted| wanted.vcpu == vcpu)?;
        wanted.under_way.take()
    }

    /// Returns true if KVM steps an instruction of a vCPU for the debugger.
    pub(crate) fn is_under_way(&self, vcpu: VcpuId) -> bool {
        let who = self.who.lock();
        let wanted = who.wanted.as_ref().filter(|wanted| wanted.vcpu == vcpu);
        wanted.is_some_and(|wanted| wanted.under_way.is_some())
    }

    /// Tells the debugger that a vCPU stops, and ends the vCPU's step.
    pub(crate) fn stop(&self, stop: Stop) {
        let mut who = self.who.lock();
        if who
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.vcpu == stop.vcpu)
        {
            who.wanted = None;
        }
        let debugger = who.debugger.clone();
        drop(who);
        if let Some(debugger) = debugger {
            debugger.stopped(stop);
        }
    }
}
