//! A guest as gdb's target.

use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{
    SingleRegisterAccess, SingleRegisterAccessOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::monitor_cmd::MonitorCmdOps;
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use vmprobe_client::v1::{Breakpoint, BreakpointKind, GuestStopped, StopReason};
use vmprobe_client::{ClientError, DebugSession};

use crate::arch::{Number, VcpuRegisters, X86_64};

/// Bytes that the server takes in one write.
const WRITE_MOST: usize = 4096;
/// The errno of a bad address, for gdb.
const EFAULT: u8 = 14;

/// A guest that gdb debugs.
pub(crate) struct Guest<'a> {
    pub(crate) session: DebugSession,
    /// The vCPU that is to execute one instruction. If it is `None`, the guest goes on.
    steps: Option<u32>,
    /// Takes the reasons of errors that gdb only gets a number for.
    log: &'a mut (dyn FnMut(&str) + Send),
}

impl<'a> Guest<'a> {
    pub(crate) fn new(session: DebugSession, log: &'a mut (dyn FnMut(&str) + Send)) -> Self {
        Self {
            session,
            steps: None,
            log,
        }
    }

    /// Logs a reason that gdb has no words for.
    pub(crate) fn log(&mut self, why: &str) {
        (self.log)(why);
    }

    /// Checks the answer to a request to the server. If the server refuses, gdb goes on with an
    /// error.
    fn checked<T>(&mut self, what: &str, done: Result<T, ClientError>) -> TargetResult<T, Self> {
        done.map_err(|error| match error {
            ClientError::Disconnected(_) | ClientError::Protocol(_) => TargetError::Fatal(error),
            error => {
                (self.log)(&format!("can't {what}: {error}"));
                TargetError::Errno(EFAULT)
            }
        })
    }

    fn set(&mut self, breakpoint: Breakpoint) -> TargetResult<bool, Self> {
        let at = breakpoint.address;
        let set = wait(self.session.set_breakpoint(breakpoint));
        self.checked(&format!("stop at {at:#x}"), set)
            .map(|()| true)
    }

    fn remove(&mut self, breakpoint: Breakpoint) -> TargetResult<bool, Self> {
        let at = breakpoint.address;
        let removed = wait(self.session.remove_breakpoint(breakpoint));
        self.checked(&format!("remove the breakpoint at {at:#x}"), removed)
            .map(|()| true)
    }
}

/// Waits for the server's answer. gdb itself waits meanwhile, so there is nothing else to do.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(answer))
}

fn vcpu(thread: Tid) -> u32 {
    u32::try_from(thread.get() - 1).unwrap_or(u32::MAX)
}

fn thread(vcpu: u32) -> Tid {
    Tid::MIN.saturating_add(vcpu as usize)
}

fn execution(kind: BreakpointKind, address: u64) -> Breakpoint {
    Breakpoint {
        kind: kind.into(),
        address,
        length: 0,
    }
}

/// Makes a watchpoint; `None` for reads alone, which the processor can't watch.
fn data(address: u64, length: u64, kind: WatchKind) -> Option<Breakpoint> {
    let kind = match kind {
        WatchKind::Write => BreakpointKind::Write,
        WatchKind::ReadWrite => BreakpointKind::Access,
        WatchKind::Read => return None,
    };
    Some(Breakpoint {
        kind: kind.into(),
        address,
        length: u32::try_from(length).ok()?,
    })
}

/// Returns a stop in gdb's terms.
pub(crate) fn stop_reason(stopped: &GuestStopped) -> MultiThreadStopReason<u64> {
    let tid = thread(stopped.vcpu);
    let signal = |signal| MultiThreadStopReason::SignalWithThread { tid, signal };
    let breakpoint = match (stopped.reason(), stopped.breakpoint) {
        (StopReason::Interrupted, _) => return signal(Signal::SIGINT),
        (StopReason::Breakpoint, Some(breakpoint)) => breakpoint,
        _ => return signal(Signal::SIGTRAP),
    };
    let watch = |kind| MultiThreadStopReason::Watch {
        tid,
        kind,
        addr: breakpoint.address,
    };
    match breakpoint.kind() {
        BreakpointKind::Hardware => MultiThreadStopReason::HwBreak(tid),
        BreakpointKind::Write => watch(WatchKind::Write),
        BreakpointKind::Access => watch(WatchKind::ReadWrite),
        BreakpointKind::Software | BreakpointKind::Unspecified => {
            MultiThreadStopReason::SwBreak(tid)
        }
    }
}

impl Target for Guest<'_> {
    type Arch = X86_64;
    type Error = ClientError;

    fn base_ops(&mut self) -> BaseOps<'_, X86_64, ClientError> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Guest<'_> {
    fn read_registers(
        &mut self,
        registers: &mut VcpuRegisters,
        tid: Tid,
    ) -> TargetResult<(), Self> {
        let read = wait(self.session.read_vcpu(vcpu(tid)));
        registers.0 = self.checked("read registers", read)?;
        Ok(())
    }

    fn write_registers(&mut self, registers: &VcpuRegisters, tid: Tid) -> TargetResult<(), Self> {
        let general = registers.0.registers.unwrap_or_default();
        let written = wait(self.session.write_vcpu(vcpu(tid), general));
        self.checked("set registers", written)
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, at: u64, into: &mut [u8], tid: Tid) -> TargetResult<usize, Self> {
        // gdb asks for 4 KiB at a time.
        let length = u32::try_from(into.len()).unwrap_or(u32::MAX);
        let read = wait(self.session.read_memory(vcpu(tid), at, length));
        let read = self.checked(&format!("read memory at {at:#x}"), read)?;
        if read.is_empty() && length > 0 {
            return Err(TargetError::Errno(EFAULT));
        }
        let len = read.len().min(into.len());
        into[..len].copy_from_slice(&read[..len]);
        Ok(len)
    }

    fn write_addrs(&mut self, at: u64, bytes: &[u8], tid: Tid) -> TargetResult<(), Self> {
        let mut at = at;
        for part in bytes.chunks(WRITE_MOST) {
            let written = wait(self.session.write_memory(vcpu(tid), at, part.to_vec()));
            self.checked(&format!("write memory at {at:#x}"), written)?;
            at = at.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    fn list_active_threads(&mut self, found: &mut dyn FnMut(Tid)) -> Result<(), ClientError> {
        (0..self.session.vcpus()).map(thread).for_each(found);
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl ThreadExtraInfo for Guest<'_> {
    fn thread_extra_info(&self, tid: Tid, into: &mut [u8]) -> Result<usize, ClientError> {
        let text = format!("vCPU {}", vcpu(tid));
        let len = text.len().min(into.len());
        into[..len].copy_from_slice(&text.as_bytes()[..len]);
        Ok(len)
    }
}

impl SingleRegisterAccess<Tid> for Guest<'_> {
    fn read_register(
        &mut self,
        tid: Tid,
        number: Number,
        into: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let mut all = VcpuRegisters::default();
        self.read_registers(&mut all, tid)?;
        let value = all.get(number).ok_or(TargetError::NonFatal)?;
        into.get_mut(..value.len())
            .ok_or(TargetError::NonFatal)?
            .copy_from_slice(&value);
        Ok(value.len())
    }

    fn write_register(&mut self, tid: Tid, number: Number, value: &[u8]) -> TargetResult<(), Self> {
        let mut all = VcpuRegisters::default();
        self.read_registers(&mut all, tid)?;
        if !all.set(number, value) {
            (self.log)("can't set this register: only general registers, rip and eflags can be");
            return Err(TargetError::NonFatal);
        }
        self.write_registers(&all, tid)
    }
}

impl MultiThreadResume for Guest<'_> {
    fn resume(&mut self) -> Result<(), ClientError> {
        match self.steps {
            Some(vcpu) => wait(self.session.step(vcpu)),
            None => wait(self.session.go_on()),
        }
    }

    fn clear_resume_actions(&mut self) -> Result<(), ClientError> {
        self.steps = None;
        Ok(())
    }

    /// Does nothing: all vCPUs go on together, so to continue one is to continue all.
    fn set_resume_action_continue(
        &mut self,
        _tid: Tid,
        _signal: Option<Signal>,
    ) -> Result<(), ClientError> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for Guest<'_> {
    fn set_resume_action_step(
        &mut self,
        tid: Tid,
        _signal: Option<Signal>,
    ) -> Result<(), ClientError> {
        self.steps = Some(vcpu(tid));
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for Guest<'_> {
    /// Does nothing: a vCPU that steps is always alone.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), ClientError> {
        Ok(())
    }
}

impl Breakpoints for Guest<'_> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Guest<'_> {
    fn add_sw_breakpoint(&mut self, at: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.set(execution(BreakpointKind::Software, at))
    }

    fn remove_sw_breakpoint(&mut self, at: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.remove(execution(BreakpointKind::Software, at))
    }
}

impl HwBreakpoint for Guest<'_> {
    fn add_hw_breakpoint(&mut self, at: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.set(execution(BreakpointKind::Hardware, at))
    }

    fn remove_hw_breakpoint(&mut self, at: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.remove(execution(BreakpointKind::Hardware, at))
    }
}

impl HwWatchpoint for Guest<'_> {
    fn add_hw_watchpoint(
        &mut self,
        at: u64,
        len: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        match data(at, len, kind) {
            Some(breakpoint) => self.set(breakpoint),
            None => {
                (self.log)("can't watch for reads alone: use awatch, or watch");
                Ok(false)
            }
        }
    }

    fn remove_hw_watchpoint(
        &mut self,
        at: u64,
        len: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        match data(at, len, kind) {
            Some(breakpoint) => self.remove(breakpoint),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_vcpus_counted_from_one() {
        for number in [0, 1, 63] {
            assert_eq!(vcpu(thread(number)), number);
        }
        assert_eq!(thread(0).get(), 1);
    }

    #[test]
    fn a_stop_names_its_thread_and_its_cause() {
        let stopped = |reason: StopReason, breakpoint| GuestStopped {
            reason: reason.into(),
            vcpu: 2,
            breakpoint,
        };
        let tid = thread(2);
        let signal = |signal| MultiThreadStopReason::SignalWithThread { tid, signal };
        let told = |reason, breakpoint| stop_reason(&stopped(reason, breakpoint));
        assert_eq!(told(StopReason::Interrupted, None), signal(Signal::SIGINT));
        assert_eq!(told(StopReason::Stepped, None), signal(Signal::SIGTRAP));
        let at = |kind| Some(execution(kind, 0x10));
        let cases = [
            (
                BreakpointKind::Software,
                MultiThreadStopReason::SwBreak(tid),
            ),
            (
                BreakpointKind::Hardware,
                MultiThreadStopReason::HwBreak(tid),
            ),
            (
                BreakpointKind::Write,
                MultiThreadStopReason::Watch {
                    tid,
                    kind: WatchKind::Write,
                    addr: 0x10,
                },
            ),
        ];
        for (kind, expected) in cases {
            assert_eq!(told(StopReason::Breakpoint, at(kind)), expected);
        }
    }

    #[test]
    fn reads_alone_can_t_be_watched() {
        assert_eq!(data(0x10, 8, WatchKind::Read), None);
        let watch = data(0x10, 8, WatchKind::ReadWrite).unwrap();
        assert_eq!((watch.kind(), watch.length), (BreakpointKind::Access, 8));
    }
}
