//! The monitor's own view of a trap, without server and engine: in whatever form this machine's KVM
//! reports an int3, it becomes the same [`Trap::Breakpoint`].

use std::sync::{Arc, Mutex, PoisonError};

use guest_state::x86_64::INT3;
use guest_state::{
    Action, Debugging, GuestMemory, GuestPhysAddr, Step, StepEnd, StoppedGuest, Trap, TrapHandler,
    Vcpu, VcpuId,
};
use iced_x86::code_asm::ebx;
use vmm::confinement::Confinement;
use vmm::{BootMethod, Ending, Vm, VmConfig};

use super::image::{self, TEXT};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check_eq, pass, wrong};

pub const SHAPES: Test = Test {
    name: "tiny_an_int3_and_a_step_are_the_same_traps_on_every_kvm",
    ids: &["KP12"],
    needs: Needs::Tiny,
    run: shapes,
};

/// A trap, and RIP without the upper half's offset.
type Seen = (Trap, u64);

/// Steps over the instruction whose first byte an int3 replaced, and records the traps.
#[derive(Debug, Default)]
struct Recorder {
    seen: Mutex<Vec<Seen>>,
}

/// The byte that the int3 replaces: `inc ebx` is `ff c3`.
const ORIGINAL: u8 = 0xff;

impl TrapHandler for Recorder {
    fn trap(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory, trap: Trap) -> Action {
        let rip = physical(vcpu);
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((trap, rip));
        match trap {
            Trap::Breakpoint => Action::Step(Step {
                alone: true,
                ..Step::default()
            }),
            // A failed write shows: the next int3 is missing among the traps.
            Trap::Step(StepEnd::Done) => {
                let _ = memory.write(GuestPhysAddr(rip - 2), &[INT3]);
                Action::Resume
            }
            Trap::Watchpoint(_) | Trap::Step(_) | Trap::Released | Trap::StepWanted => {
                Action::Reinject
            }
        }
    }

    fn before_step(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory) -> bool {
        let at = GuestPhysAddr(physical(vcpu));
        memory.write(at, &[ORIGINAL]).is_ok()
    }
}

/// RIP as a physical address.
fn physical(vcpu: &dyn Vcpu) -> u64 {
    vcpu.registers().rip.wrapping_sub(image::UPPER_HALF)
}

fn shapes(_: &Context) -> TestResult {
    let kernel = image::build(|a, _| {
        a.xor(ebx, ebx)?;
        a.nop()?;
        a.inc(ebx)?;
        a.inc(ebx)?;
        image::power_off(a)
    })?;
    let code = kernel
        .windows(4)
        .position(|bytes| bytes == [0xff, 0xc3, 0xff, 0xc3]);
    let code = code.ok_or_else(|| wrong!("the code isn't in the kernel"))?;
    let first = TEXT + (code - image::CODE_AT) as u64;
    let path = std::env::temp_dir().join("tiny-kernel");
    std::fs::write(&path, &kernel).map_err(Failure::io("write the tiny kernel"))?;
    let config = VmConfig {
        kernel: path.into(),
        initramfs: None,
        cmdline: String::new(),
        huge_pages: false,
        numa_nodes: 1,
        memory_mib: 64,
        vcpus: 1,
        boot: BootMethod::Elf,
        max_file: vmm::MAX_FILE,
        kernel_cache: None,
        devices: vmm::Devices::default(),
    };
    let kernel = config.read_kernel().map_err(|error| wrong!("{error}"))?;
    let vm = Vm::create(&config, &kernel, &Confinement::none());
    let vm = vm.map_err(|error| wrong!("{error}"))?;
    vm.stopped(|guest| {
        for at in [first, first + 2] {
            guest
                .memory()
                .write(GuestPhysAddr(at), &[INT3])
                .map_err(|error| wrong!("{error}"))?;
        }
        let debugging = Debugging {
            breakpoints: true,
            watchpoints: Vec::new(),
        };
        let set = guest.set_debugging(&debugging);
        set.map_err(|error| wrong!("{error}"))
    })?;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn TrapHandler> = Arc::clone(&recorder) as _;
    vm.start(&handler).map_err(|error| wrong!("{error}"))?;
    check_eq!(vm.wait(), Ending::PowerOff, "the ending");
    let seen = recorder
        .seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let expected = [
        (Trap::Breakpoint, first),
        (Trap::Step(StepEnd::Done), first + 2),
        (Trap::Breakpoint, first + 2),
        (Trap::Step(StepEnd::Done), first + 4),
    ];
    check_eq!(seen, expected, "the traps");
    let rbx = vm
        .stopped(|guest| guest.registers(VcpuId(0)))
        .map_err(|error| wrong!("{error}"))?
        .rbx;
    check_eq!(rbx, 2, "RBX at the end");
    pass()
}
