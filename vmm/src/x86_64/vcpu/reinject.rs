//! Giving the guest its own exceptions back.

use guest_state::VcpuError;
use kvm_bindings::{KVM_GUESTDBG_INJECT_BP, KVM_GUESTDBG_INJECT_DB};

use super::{context::VcpuContext, exit::BreakpointExit, guest_debug::DebugEvent};
use crate::ram::GuestRam;

/// How a guest's own exception gets back to it.
#[derive(PartialEq, Eq)]
pub(crate) enum Reinjected {
    /// It is at its handler.
    Delivered,
    /// KVM has been told already.
    Injected,
    /// KVM is to be asked by these `KVM_GUESTDBG_INJECT_*`.
    Asked(u32),
}

/// Gives the guest an exception of its own; `breakpoint_exit` is how this KVM reports an int3.
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
        // It was no exception.
        DebugEvent::Astray => Ok(Reinjected::Delivered),
    }
}
