//! Boots a kernel with its console on standard output and every exception reinjected
//! into the guest: the monitor alone, no probes.
//!
//! `cargo run -p vmm --example boot -- KERNEL INITRAMFS CMDLINE [VCPUS [MIB]]`
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use guest_state::{Action, Debugging, GuestMemory, StoppedGuest, Trap, TrapHandler, Vcpu};
use vmm::confinement::Confinement;
use vmm::{BootMethod, Vm, VmConfig};

struct ReinjectAll;

impl TrapHandler for ReinjectAll {
    fn trap(&self, _: &mut dyn Vcpu, _: &dyn GuestMemory, _: Trap) -> Action {
        Action::Reinject
    }

    fn before_step(&self, _: &mut dyn Vcpu, _: &dyn GuestMemory) -> bool {
        false
    }
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initramfs, cmdline, numbers @ ..] = args.as_slice() else {
        return Err("usage: boot KERNEL INITRAMFS CMDLINE [VCPUS [MIB]]".into());
    };
    let config = VmConfig {
        kernel: kernel.into(),
        initramfs: Some(initramfs.into()),
        cmdline: cmdline.clone(),
        huge_pages: false,
        numa_nodes: 1,
        memory_mib: numbers.get(1).map_or(Ok(512), |n| n.parse())?,
        vcpus: numbers.first().map_or(Ok(1), |n| n.parse())?,
        boot: BootMethod::Elf,
        max_file: vmm::MAX_FILE,
        kernel_cache: None,
        devices: vmm::Devices::default(),
    };
    let vm = Vm::create(&config, &config.read_kernel()?, &Confinement::none())?;
    // int3s exit and are reinjected, as beside a breakpoint probe.
    let debugging = Debugging {
        breakpoints: true,
        watchpoints: Vec::new(),
    };
    vm.stopped(|stopped| stopped.set_debugging(&debugging))?;
    let handler: Arc<dyn TrapHandler> = Arc::new(ReinjectAll);
    vm.start(&handler)?;
    let mut next = 0;
    loop {
        let chunk = vm.console().wait(next);
        io::stdout().write_all(&chunk.bytes)?;
        next = chunk.next;
        if chunk.last {
            break;
        }
    }
    let ending = vm.wait();
    eprintln!("boot: {ending}");
    Ok(ExitCode::from(ending.exit_code()))
}
