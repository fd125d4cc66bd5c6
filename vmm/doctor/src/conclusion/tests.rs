use super::*;
use crate::report::{Instruction, Reinjection, Speed};

fn cpu(virtualization: Virtualization) -> Cpu {
    Cpu {
        vendor: "MadeUpVendor".into(),
        hypervisor: false,
        virtualization,
    }
}

fn sound() -> GuestFindings {
    let ok = || Check::ok("seen");
    GuestFindings {
        starts: ok(),
        int3: Some(Int3 {
            shape: Int3Shape::DebugExit,
            detail: "seen".into(),
            give_back: vec![
                Reinjection {
                    way: "INJECT_BP",
                    ok: true,
                    detail: "seen".into(),
                },
                Reinjection {
                    way: "VCPU_EVENTS",
                    ok: false,
                    detail: "seen".into(),
                },
            ],
        }),
        single_step: Some(ok()),
        single_step_block_irq: Some(ok()),
        hardware_breakpoint: Some(ok()),
        watchpoint: Some(ok()),
        instructions: vec![Instruction {
            name: "popcnt",
            ok: true,
            detail: "ran".into(),
        }],
        speed: Some(Speed {
            kernel_instructions_per_second: Some(3e9),
            port_exit_ns: Some(900.0),
            int3_ns: Some(1500.0),
        }),
    }
}

fn all_capabilities() -> Capabilities {
    Capabilities {
        sync_regs: 7,
        guest_debug_flags: 0x1f_0003,
        block_irq: true,
        guest_debug: true,
        user_memory: true,
        immediate_exit: true,
        irqchip: true,
        irqfd: true,
        memslots: 32764,
        max_vcpus: 1024,
        tsc_deadline: true,
        tsc_offset: true,
    }
}

fn conclude_on(guest: Option<GuestFindings>, device: Device) -> Report {
    conclude_with(all_capabilities(), guest, device)
}

fn conclude_with(has: Capabilities, guest: Option<GuestFindings>, device: Device) -> Report {
    let kvm = KvmFindings {
        device,
        api_version: Some(12),
        capabilities: Some(has),
    };
    conclude(cpu(Virtualization::None), kvm, guest)
}

/// The verdict on a sound machine with `flaw`: whether Linux runs, and words of it.
#[track_caller]
fn check(flaw: fn(&mut GuestFindings), runs_linux: bool, words: &str) {
    let mut guest = sound();
    flaw(&mut guest);
    let report = conclude_on(Some(guest), Device::Ok);
    assert_eq!(report.runs_linux, runs_linux, "{}", report.verdict);
    assert!(report.verdict.contains(words), "{}", report.verdict);
    assert!(report.to_string().trim_end().ends_with(&report.verdict));
}

#[test]
fn a_sound_kvm_runs_linux_and_needs_no_advice() {
    check(
        |_| {},
        true,
        "Linux boots on this KVM and breakpoint probes work",
    );
    assert!(conclude_on(Some(sound()), Device::Ok).advice.is_empty());
}

#[test]
fn features_that_an_emulator_lacks_are_named() {
    let flaw = |guest: &mut GuestFindings| {
        guest.instructions[0].ok = false;
        if let Some(speed) = &mut guest.speed {
            speed.kernel_instructions_per_second = Some(1.8e6);
        }
    };
    check(
        flaw,
        false,
        "emulates kernel-mode code (1.8 M instructions/s; popcnt not in its",
    );
    check(
        |guest| guest.instructions[0].ok = false,
        false,
        "popcnt can't be run",
    );
}

#[test]
fn breakpoints_that_do_not_work_are_a_no() {
    let no_exit = |guest: &mut GuestFindings| {
        guest.int3.as_mut().unwrap().shape = Int3Shape::ToGuest;
    };
    check(
        no_exit,
        false,
        "breakpoint probes don't work: an int3 makes no debug exit",
    );
    let no_way_back = |guest: &mut GuestFindings| {
        guest.int3.as_mut().unwrap().give_back[0].ok = false;
    };
    check(no_way_back, false, "can't be given back");
}

#[test]
fn a_partial_kvm_runs_linux_and_the_verdict_names_what_does_not_work() {
    let flaw = |guest: &mut GuestFindings| {
        guest.hardware_breakpoint = Some(Check::failed("not reported"));
    };
    check(flaw, true, "but not hardware breakpoints");
    let flaw = |guest: &mut GuestFindings| guest.single_step = Some(Check::failed("hangs"));
    check(flaw, true, "but not probes that need a single step");
}

/// A thing that a KVM may lack, whether Linux runs without, and what the verdict calls it.
type Lack<T> = (fn(&mut T), bool, &'static str);

#[test]
fn each_thing_that_guests_show_a_kvm_to_lack_is_named() {
    let lacks: [Lack<GuestFindings>; 15] = [
        (
            |it| it.starts.ok = false,
            false,
            "a guest of one instruction fails: seen",
        ),
        (
            |it| it.int3 = None,
            false,
            "a guest of one instruction fails",
        ),
        (
            |it| shape(it, Int3Shape::InternalError),
            false,
            "an int3 makes no debug exit",
        ),
        (
            |it| shape(it, Int3Shape::ToGuest),
            false,
            "an int3 makes no debug exit",
        ),
        (
            |it| shape(it, Int3Shape::Hangs),
            false,
            "an int3 makes no debug exit",
        ),
        (
            |it| shape(it, Int3Shape::Other),
            false,
            "an int3 makes no debug exit",
        ),
        (|it| ways_back(it).clear(), false, "can't be given back"),
        (
            |it| ways_back(it)[0].ok = false,
            false,
            "can't be given back",
        ),
        (
            |it| it.instructions[0].ok = false,
            false,
            "popcnt can't be run",
        ),
        (
            |it| it.single_step = failed(),
            true,
            "not probes that need a single step",
        ),
        (
            |it| it.single_step_block_irq = failed(),
            true,
            "not single steps with interrupts",
        ),
        (
            |it| it.single_step_block_irq = None,
            true,
            "not single steps with interrupts",
        ),
        (
            |it| it.hardware_breakpoint = failed(),
            true,
            "not hardware breakpoints",
        ),
        (|it| it.watchpoint = failed(), true, "not watchpoints"),
        (
            |it| speed(it).kernel_instructions_per_second = Some(2e6),
            true,
            "slowly (2.0 M",
        ),
    ];
    for (flaw, runs_linux, words) in lacks {
        check(flaw, runs_linux, words);
    }
    let all = |it: &mut GuestFindings| {
        (it.single_step, it.single_step_block_irq) = (failed(), failed());
        (it.hardware_breakpoint, it.watchpoint) = (failed(), failed());
    };
    check(all, true, "nor single steps with");
    check(all, true, "nor hardware breakpoints, nor watchpoints");
}

#[test]
fn each_capability_that_a_kvm_lacks_is_named() {
    let lacks: [Lack<Capabilities>; 7] = [
        (|it| it.user_memory = false, false, "KVM_CAP_USER_MEMORY"),
        (|it| it.irqchip = false, false, "KVM_CAP_IRQCHIP"),
        (|it| it.irqfd = false, false, "KVM_CAP_IRQFD"),
        (
            |it| it.immediate_exit = false,
            false,
            "KVM_CAP_IMMEDIATE_EXIT",
        ),
        (
            |it| it.guest_debug = false,
            false,
            "KVM_CAP_SET_GUEST_DEBUG",
        ),
        (|it| it.sync_regs = 3, true, "KVM_CAP_SYNC_REGS"),
        (|it| it.tsc_offset = false, true, "KVM_VCPU_TSC_OFFSET"),
    ];
    for (flaw, runs_linux, words) in lacks {
        let mut has = all_capabilities();
        flaw(&mut has);
        let report = conclude_with(has, Some(sound()), Device::Ok);
        assert_eq!(report.runs_linux, runs_linux, "{words}");
        let text = report.to_string();
        assert!(text.contains(words), "{text}");
        assert!(!report.advice.is_empty(), "{text}");
        let refused = report.verdict.contains("no VM can be made on this KVM");
        assert_eq!(refused, !runs_linux, "{text}");
    }
}

fn failed() -> Option<Check> {
    Some(Check::failed("not seen"))
}

fn shape(guest: &mut GuestFindings, shape: Int3Shape) {
    guest.int3.as_mut().unwrap().shape = shape;
}

fn ways_back(guest: &mut GuestFindings) -> &mut Vec<Reinjection> {
    &mut guest.int3.as_mut().unwrap().give_back
}

fn speed(guest: &mut GuestFindings) -> &mut Speed {
    guest.speed.as_mut().unwrap()
}

#[test]
fn a_guest_that_does_not_start_is_a_no_with_its_reason() {
    let flaw = |guest: &mut GuestFindings| guest.starts = Check::failed("KVM refused it");
    check(flaw, false, "KVM refused it");
}

#[test]
fn each_trouble_with_the_device_has_its_advice() {
    let path = || "/dev/kvm".to_owned();
    let refused = |mode: &str| Device::NoPermission {
        path: path(),
        mode: mode.into(),
        group: "kvm".into(),
    };
    for (device, words) in [
        (Device::Missing { path: path() }, "--device /dev/kvm"),
        (refused("0660"), "usermod -aG kvm"),
        (refused("0600"), "run as root"),
        (
            Device::NotKvm {
                path: path(),
                api_version: -1,
            },
            "10:232",
        ),
        (
            Device::Unusable {
                path: path(),
                error: "busy".into(),
            },
            "lab",
        ),
    ] {
        let report = conclude_on(None, device);
        let advice = report.advice.join("\n");
        assert!(!report.runs_linux);
        assert!(advice.contains(words), "{advice}");
        assert!(advice.contains("make demo"), "{advice}");
    }
}
