//! What the engine reports.

use guest_state::{GuestVirtAddr, Registers, Tsc, VcpuId};

use crate::probe::ProbeId;
use crate::value::Recorded;
use guest_kernel::context::TaskContext;

/// One event of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The probe.
    pub probe: ProbeId,
    /// The vCPU that hit it.
    pub vcpu: VcpuId,
    /// The guest's time stamp counter, in its ticks, when the vCPU stopped.
    pub tsc: Tsc,
    /// The registers as of the event. Before the probed instruction RIP is the probe's address,
    /// also where the code ran at another one (identity-mapped early boot, a relocated copy).
    pub registers: Registers,
    /// The current task, `task_struct`'s address; 0 where it isn't known, as in events of breakpoints that
    /// don't ask for the context.
    pub task: u64,
    /// The time by the clock of the guest's log, in nanoseconds; 0 where it isn't known, as in events that
    /// don't ask for the context.
    pub time_ns: u64,
    /// What the current task is, if the probe asks for it and the kernel's types tell.
    pub context: Option<Box<TaskContext>>,
    /// RFLAGS at the hit, if the context is asked for.
    pub flags: Option<u64>,
    /// The task's stack, if the probe asks for it.
    pub stack: Stack,
    /// The values that the probe asks for.
    pub values: Recorded,
    /// What happened.
    pub detail: Detail,
}

/// The callers of the code at an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stack {
    /// The return addresses, the innermost first. The first is the event's own address.
    pub addresses: Box<[u64]>,
    /// Callers are missing behind the last one: the probe asks for no more, the record has no more of the stack, or
    /// the kernel's tables don't tell.
    pub is_cut: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// The probed instruction is about to be executed.
    Pre,
    /// It has been executed.
    Post,
    /// It raised an exception, which the guest's handler is about to get.
    Fault {
        /// Vector of the exception (SDM vol. 3A, table 6-1).
        vector: u8,
        /// Its error code, if that exception has one.
        error_code: Option<u32>,
        /// CR2 of a page fault.
        address: Option<GuestVirtAddr>,
    },
    /// The probed function returned.
    Return {
        /// Where to.
        caller: GuestVirtAddr,
        /// The time of its call.
        entry_tsc: Tsc,
        /// The registers at its entry. They are boxed, as most events have none and thousands wait to be put in order.
        entry: Box<Registers>,
        /// It has jumped to another function, which will return in its place: there is no value yet, and
        /// the registers are those in front of the jump. Only of probes at the function's own returns.
        tail_call: bool,
    },
    /// The watched data was accessed by the instruction before RIP.
    Access,
}

impl Event {
    /// Makes an event without anything of the task, its stack or values.
    pub(crate) fn plain(
        (probe, vcpu): (ProbeId, VcpuId),
        tsc: Tsc,
        registers: Registers,
        detail: Detail,
    ) -> Self {
        Self {
            probe,
            vcpu,
            tsc,
            flags: None,
            time_ns: 0,
            registers,
            task: 0,
            context: None,
            stack: Stack::default(),
            values: Recorded::default(),
            detail,
        }
    }
}

/// Takes the events.
pub trait EventSink: Send + Sync {
    /// Called on the vCPUs' threads, several at once, with the vCPU stopped: be quick, and don't wait for anything that
    /// a vCPU does.
    fn event(&self, event: &Event);

    /// Returns false if no client would get an event that happens now, so that none need be made.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Tells that the guest has come to where probes can become jumps that couldn't before: its kernel has started, or
    /// a module was loaded. Called as [`Self::event`] is.
    fn may_jump(&self) {}
}
