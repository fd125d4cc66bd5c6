//! Single step, hardware breakpoints and watchpoints.

use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP,
    kvm_guest_debug,
};

use crate::{
    guest::{GuestExit, Runner},
    report::Check,
    setup::{CODE, DATA},
};

/// nop; nop; nop; hlt
const PROGRAM: [u8; 4] = [0x90, 0x90, 0x90, 0xf4];
/// mov [rdi], rax; nop; hlt
const WRITES: [u8; 5] = [0x48, 0x89, 0x07, 0x90, 0xf4];

/// Bits of DR6 (Intel SDM volume 3B, "Debug Status Register").
const DR6_B0: u64 = 1 << 0;
const DR6_BS: u64 = 1 << 14;
/// DR7: breakpoint 0 enabled (G0), on execution, and GE.
const DR7_EXECUTE_0: u64 = 1 << 1 | 1 << 9;
/// The same, on writes of 8 bytes.
const DR7_WRITE_0: u64 = DR7_EXECUTE_0 | 0b1001 << 16;

pub(crate) fn single_step(runner: &Runner) -> Check {
    stops_at(runner, &PROGRAM, step(0), CODE + 1, DR6_BS)
}

pub(crate) fn single_step_block_irq(runner: &Runner) -> Check {
    stops_at(
        runner,
        &PROGRAM,
        step(KVM_GUESTDBG_BLOCKIRQ),
        CODE + 1,
        DR6_BS,
    )
}

pub(crate) fn hardware_breakpoint(runner: &Runner) -> Check {
    let debug = address_0(CODE + 2, DR7_EXECUTE_0);
    stops_at(runner, &PROGRAM, debug, CODE + 2, DR6_B0)
}

pub(crate) fn watchpoint(runner: &Runner) -> Check {
    // After the access, and so after the instruction.
    let debug = address_0(DATA, DR7_WRITE_0);
    stops_at(runner, &WRITES, debug, CODE + 3, DR6_B0)
}

fn address_0(address: u64, dr7: u64) -> kvm_guest_debug {
    let mut debug = kvm_guest_debug {
        control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP,
        ..Default::default()
    };
    debug.arch.debugreg[0] = address;
    debug.arch.debugreg[7] = dr7;
    debug
}

fn step(more: u32) -> kvm_guest_debug {
    kvm_guest_debug {
        control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP | more,
        ..Default::default()
    }
}

/// Checks that the guest makes a debug exit with exception 1, at `address` and for
/// the reason `cause`, a bit of DR6.
fn stops_at(
    runner: &Runner,
    program: &[u8],
    debug: kvm_guest_debug,
    address: u64,
    cause: u64,
) -> Check {
    let outcome = runner.run(program, move |guest| {
        guest.debug(&debug)?;
        let stop = guest.run()?;
        Ok((guest.describe(&stop)?, stop))
    });
    match outcome {
        Ok((
            seen,
            GuestExit::Debug {
                exception: 1,
                pc,
                dr6,
            },
        )) if pc == address && dr6 & cause != 0 => Check::ok(seen),
        Ok((_, GuestExit::Halted)) => Check::failed("not reported: the guest ran on to its end"),
        Ok((seen, _)) => Check::failed(seen),
        Err(error) => Check::failed(error.to_string()),
    }
}
