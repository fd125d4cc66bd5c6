//! What this machine's KVM does, measured instead of guessed.
//!
//! A `/dev/kvm` may be upstream KVM on VMX or SVM, an emulator of kernel-mode
//! code, a nested one with gaps, or none at all. [`examine`] finds out by
//! running guests of a few bytes and reports what they saw: how an `int3`
//! leaves the guest and how it is given back, whether single step and hardware
//! breakpoints work, whether the instructions that a Linux boot needs run, and
//! how fast. Nothing is printed, and a guest that doesn't come back is a finding.
//!
//! The crate makes its guests with KVM's calls alone and uses nothing of the
//! monitor: it also answers where the monitor can't make a VM.

mod conclusion;
mod debug;
mod device;
mod error;
mod guest;
mod instructions;
mod int3;
mod report;
mod setup;
mod speed;

use std::{path::Path, sync::Arc};

use guest::{GuestExit, Runner};
use kvm_ioctls::Kvm;
pub use report::{
    Capabilities, Check, Cpu, Device, GuestFindings, Instruction, Int3, Int3Shape, KvmFindings,
    Reinjection, Report, Speed, Virtualization,
};

/// Where KVM is.
const DEVICE: &str = "/dev/kvm";

/// Examines this machine's KVM. Takes well under a second on most machines, and
/// some ten seconds where guests hang. Never panics, never hangs.
#[must_use]
pub fn examine() -> Report {
    examine_at(Path::new(DEVICE))
}

fn examine_at(path: &Path) -> Report {
    let cpu = device::cpu();
    let (kvm, guest) = match device::open(path) {
        Err(device) => (
            KvmFindings {
                device,
                api_version: None,
                capabilities: None,
            },
            None,
        ),
        Ok(kvm) => {
            let kvm = Arc::new(kvm);
            let runner = Runner::new(Arc::clone(&kvm));
            (
                device::look(&kvm, &runner),
                Some(examine_guests(&kvm, &runner)),
            )
        }
    };
    conclusion::conclude(cpu, kvm, guest)
}

fn examine_guests(kvm: &Kvm, runner: &Runner) -> GuestFindings {
    let starts = starts(runner);
    if !starts.ok {
        return GuestFindings {
            starts,
            int3: None,
            single_step: None,
            single_step_block_irq: None,
            hardware_breakpoint: None,
            watchpoint: None,
            instructions: Vec::new(),
            speed: None,
        };
    }
    let int3 = int3::examine(runner);
    GuestFindings {
        starts,
        single_step: Some(debug::single_step(runner)),
        single_step_block_irq: device::can_block_irq(kvm)
            .then(|| debug::single_step_block_irq(runner)),
        hardware_breakpoint: Some(debug::hardware_breakpoint(runner)),
        watchpoint: Some(debug::watchpoint(runner)),
        instructions: instructions::examine(runner),
        speed: Some(speed::examine(runner, int3.shape)),
        int3: Some(int3),
    }
}

/// Checks that a guest in 64-bit mode runs at all.
fn starts(runner: &Runner) -> Check {
    // mov eax, 42; hlt
    let outcome = runner.run(&[0xb8, 42, 0, 0, 0, 0xf4], |guest| {
        let stop = guest.run()?;
        Ok((guest.registers()?.rax, guest.describe(&stop)?, stop))
    });
    match outcome {
        Ok((42, _, GuestExit::Halted)) => Check::ok("a guest in 64-bit mode runs and halts"),
        Ok((_, seen, _)) => Check::failed(seen),
        Err(error) => Check::failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_kvm_gets_a_whole_report() {
        let report = examine_at(Path::new("/made-up/kvm"));
        assert!(!report.runs_linux);
        assert!(report.guest.is_none());
        assert!(!report.advice.is_empty());
        assert!(report.to_string().contains(&report.verdict));
    }

    #[test]
    fn examining_this_machine_comes_to_a_verdict() {
        let report = examine();
        println!("{report}");
        assert!(!report.verdict.is_empty());
        assert!(report.runs_linux || !report.advice.is_empty());
    }
}
