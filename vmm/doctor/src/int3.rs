//! How an `int3` at CPL 0 shows, and how it is handed to the guest.

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_BP, KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};

use crate::{
    error::GuestError,
    guest::{Guest, GuestExit, Runner, place},
    report::{Int3, Int3Shape, Reinjection},
    setup::CODE,
};

/// nop; int3; nop; hlt
const PROGRAM: [u8; 4] = [0x90, 0xcc, 0x90, 0xf4];
const INT3: u64 = CODE + 1;
const AFTER_INT3: u64 = INT3 + 1;

/// The suberror of an instruction that KVM can't emulate.
const EMULATION: u32 = 1;

pub(crate) fn examine(runner: &Runner) -> Int3 {
    let (shape, detail) = runner.run(&PROGRAM, shape).unwrap_or_else(|error| {
        let shape = match error {
            GuestError::Hangs => Int3Shape::Hangs,
            _ => Int3Shape::Other,
        };
        (shape, error.to_string())
    });
    let give_back = match shape {
        Int3Shape::DebugExit | Int3Shape::InternalError => vec![
            tried(
                "INJECT_BP",
                runner.run(&PROGRAM, |guest| give_back(guest, inject_bp)),
            ),
            tried(
                "VCPU_EVENTS",
                runner.run(&PROGRAM, |guest| give_back(guest, vcpu_events)),
            ),
        ],
        // Nothing to give back.
        Int3Shape::ToGuest | Int3Shape::Hangs | Int3Shape::Other => Vec::new(),
    };
    Int3 {
        shape,
        detail,
        give_back,
    }
}

/// Makes breakpoints of the guest exit to the host, with `more` flags.
pub(crate) fn catch_breakpoints(guest: &Guest, more: u32) -> Result<(), GuestError> {
    guest.debug(&kvm_guest_debug {
        control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP | more,
        ..Default::default()
    })
}

fn shape(guest: &mut Guest) -> Result<(Int3Shape, String), GuestError> {
    catch_breakpoints(guest, 0)?;
    let stop = guest.run()?;
    let at_int3 = guest.registers()?.rip == INT3;
    let shape = match stop {
        GuestExit::Debug {
            exception: 3,
            pc: INT3,
            ..
        } if at_int3 => Int3Shape::DebugExit,
        GuestExit::InternalError {
            suberror: EMULATION,
        } if at_int3 => Int3Shape::InternalError,
        GuestExit::Exception {
            vector: 3,
            return_address: AFTER_INT3,
        } => Int3Shape::ToGuest,
        _ => Int3Shape::Other,
    };
    Ok((shape, guest.describe(&stop)?))
}

/// Reinjects it with RIP at the `int3`, as the exit left it.
fn inject_bp(guest: &Guest) -> Result<(), GuestError> {
    catch_breakpoints(guest, KVM_GUESTDBG_INJECT_BP)
}

/// Reinjects it with RIP moved past the `int3`.
fn vcpu_events(guest: &Guest) -> Result<(), GuestError> {
    let mut registers = guest.registers()?;
    registers.rip = AFTER_INT3;
    guest.set_registers(&registers)?;
    guest.inject_breakpoint_event()
}

fn give_back(
    guest: &mut Guest,
    way: fn(&Guest) -> Result<(), GuestError>,
) -> Result<(bool, String), GuestError> {
    catch_breakpoints(guest, 0)?;
    guest.run()?;
    way(guest)?;
    let stop = guest.run()?;
    let seen = match stop {
        GuestExit::Exception {
            vector: 3,
            return_address: AFTER_INT3,
        } => {
            return Ok((
                true,
                "the guest's handler gets the right return address".into(),
            ));
        }
        GuestExit::Exception {
            vector: 3,
            return_address,
        } => format!(
            "the guest's handler gets return address {}, not {}",
            place(return_address),
            place(AFTER_INT3)
        ),
        _ => guest.describe(&stop)?,
    };
    Ok((false, seen))
}

fn tried(way: &'static str, outcome: Result<(bool, String), GuestError>) -> Reinjection {
    let (ok, detail) = outcome.unwrap_or_else(|error| (false, error.to_string()));
    Reinjection { way, ok, detail }
}
