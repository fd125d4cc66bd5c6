//! Reinjection: giving the guest its own exceptions.

use guest_state::VcpuError;
use kvm_bindings::{KVM_GUESTDBG_INJECT_BP, KVM_GUESTDBG_INJECT_DB};

use super::{context::VcpuContext, exit::BreakpointExit, guest_debug::DebugEvent};
use crate::ram::GuestRam;

/// How far a guest's own exception has got.
#[derive(PartialEq, Eq)]
pub(crate) enum Reinjected {
    /// RIP is at the guest's handler.
    Delivered,
    /// The exception is among KVM's pending events.
    Injected,
    /// KVM injects the exception when it is given these `KVM_GUESTDBG_INJECT_*`.
    Asked(u32),
}

/// Gives the guest an exception of its own. `breakpoint_exit` is how this KVM reports an int3.
pub(crate) fn reinject(
    context: &mut VcpuContext<'_>,
    event: DebugEvent,
    breakpoint_exit: BreakpointExit,
    ram: &GuestRam,
) -> Result<Reinjected, VcpuError> {
    match event {
        DebugEvent::Breakpoint if context.deliver_breakpoint(ram)? => Ok(Reinjected::Delivered),
        DebugEvent::Breakpoint if breakpoint_exit == BreakpointExit::EmulationFailure => {
            context.inject_breakpoint_after()?;
            Ok(Reinjected::Injected)
        }
        DebugEvent::Breakpoint => Ok(Reinjected::Asked(KVM_GUESTDBG_INJECT_BP)),
        DebugEvent::Debug { dr6, .. } => {
            context.add_to_dr6(dr6)?;
            Ok(Reinjected::Asked(KVM_GUESTDBG_INJECT_DB))
        }
        // These events are no exceptions.
        DebugEvent::Astray | DebugEvent::Released | DebugEvent::StepWanted => {
            Ok(Reinjected::Delivered)
        }
    }
}
