//! The verdict and the advice that follow from the findings.

use crate::report::{
    Capabilities, Check, Cpu, Device, GuestFindings, Int3, Int3Shape, KvmFindings, Report,
    Virtualization,
};

/// Below this many instructions a second, kernel-mode code isn't run by the
/// processor. The slowest real way seen, SVM on an emulated processor, makes over
/// a hundred million.
const EMULATED_BELOW: f64 = 20e6;

const USE_LAB: &str = "use the lab, upstream KVM inside an emulated processor: `make demo` and \
                       `make test` do so by themselves";

/// Makes the report of the findings.
pub(crate) fn conclude(cpu: Cpu, kvm: KvmFindings, guest: Option<GuestFindings>) -> Report {
    let Conclusion {
        runs_linux,
        verdict,
        advice,
    } = match &guest {
        None => Conclusion {
            runs_linux: false,
            verdict: format!("{}: no guest runs here", kvm.device),
            advice: device_advice(&cpu, &kvm.device),
        },
        Some(guest) => weigh(&cpu, kvm.capabilities.as_ref(), guest),
    };
    Report {
        cpu,
        kvm,
        guest,
        runs_linux,
        verdict,
        advice,
    }
}

struct Conclusion {
    runs_linux: bool,
    verdict: String,
    advice: Vec<String>,
}

fn device_advice(cpu: &Cpu, device: &Device) -> Vec<String> {
    let mut advice = match device {
        Device::Ok => Vec::new(),
        Device::Missing { path } => vec![
            match cpu.virtualization {
                Virtualization::Vmx => "load KVM: `modprobe kvm-intel`".into(),
                Virtualization::Svm => "load KVM: `modprobe kvm-amd`".into(),
                Virtualization::None if cpu.hypervisor => {
                    "have nested virtualization switched on for this machine, then load kvm-intel \
                     or kvm-amd"
                        .into()
                }
                Virtualization::None => {
                    "switch virtualization (VT-x or AMD-V) on in the firmware, then load kvm-intel \
                     or kvm-amd"
                        .into()
                }
            },
            format!("in a container, pass the device: `--device {path}`"),
        ],
        Device::NoPermission { group, mode, .. } => {
            vec![if mode.as_bytes().get(2) >= Some(&b'6') {
                format!(
                    "join its group (`usermod -aG {group} USER`, then log in anew), or run as root"
                )
            } else {
                format!("run as root: mode {mode} lets no group in")
            }]
        }
        Device::NotKvm { path, .. } => {
            vec![format!(
                "put the KVM device at {path}: character device 10:232"
            )]
        }
        Device::Unusable { .. } => vec!["mend what the system's reason names".into()],
    };
    advice.push(USE_LAB.into());
    advice
}

/// What no VM can be made without, as the monitor asks for it.
fn missing(has: &Capabilities) -> Vec<&'static str> {
    let needed = [
        (has.user_memory, "KVM_CAP_USER_MEMORY"),
        (has.irqchip, "KVM_CAP_IRQCHIP"),
        (has.irqfd, "KVM_CAP_IRQFD"),
        (has.immediate_exit, "KVM_CAP_IMMEDIATE_EXIT"),
        (has.guest_debug, "KVM_CAP_SET_GUEST_DEBUG"),
    ];
    let missing = needed.into_iter().filter(|(there, _)| !there);
    missing.map(|(_, name)| name).collect()
}

/// Advice about capabilities that make hits cheaper and that this KVM lacks.
fn slower_without(has: &Capabilities) -> Vec<String> {
    /// Registers and pending events in the shared page.
    const SYNC: u32 = 1 | 4;
    let mut advice = Vec::new();
    if has.sync_regs & SYNC != SYNC {
        advice.push(
            "each hit of a breakpoint costs system calls that a newer host kernel saves \
             (KVM_CAP_SYNC_REGS)"
                .to_owned(),
        );
    }
    if !has.tsc_offset {
        advice.push(
            "the time of each event costs a system call that a newer host kernel saves \
             (KVM_VCPU_TSC_OFFSET)"
                .to_owned(),
        );
    }
    advice
}

/// Returns true if something was tried and did what it should.
fn works(check: Option<&Check>) -> bool {
    check.is_some_and(|check| check.ok)
}

fn weigh(cpu: &Cpu, has: Option<&Capabilities>, guest: &GuestFindings) -> Conclusion {
    let lacking = has.map(missing).unwrap_or_default();
    if !lacking.is_empty() {
        return Conclusion {
            runs_linux: false,
            verdict: format!(
                "no VM can be made on this KVM: it lacks {}",
                lacking.join(", ")
            ),
            advice: vec![
                "a host kernel of 5.10 or newer has it".into(),
                USE_LAB.into(),
            ],
        };
    }
    let Some(int3) = guest.int3.as_ref().filter(|_| guest.starts.ok) else {
        return Conclusion {
            runs_linux: false,
            verdict: format!("a guest of one instruction fails: {}", guest.starts.detail),
            advice: elsewhere(cpu),
        };
    };
    let missing: Vec<&str> = guest
        .instructions
        .iter()
        .filter(|i| !i.ok)
        .map(|i| i.name)
        .collect();
    let rate = guest
        .speed
        .as_ref()
        .and_then(|speed| speed.kernel_instructions_per_second);
    let emulated = rate.filter(|rate| *rate < EMULATED_BELOW);
    if !missing.is_empty() {
        let missing = missing.join(", ");
        let verdict = match emulated {
            Some(rate) => format!(
                "this KVM emulates kernel-mode code ({:.1} M instructions/s; {missing} not in its \
                 emulator): Linux does not boot on it",
                rate / 1e6
            ),
            None => format!("Linux does not boot on this KVM: {missing} can't be run"),
        };
        return Conclusion {
            runs_linux: false,
            verdict,
            advice: elsewhere(cpu),
        };
    }
    if let Some(flaw) = int3_flaw(int3) {
        return Conclusion {
            runs_linux: false,
            verdict: format!(
                "Linux may boot on this KVM, but breakpoint probes don't work: {flaw}"
            ),
            advice: elsewhere(cpu),
        };
    }
    let mut lacks = Vec::new();
    for (check, what) in [
        (
            &guest.single_step,
            "probes that need a single step (post events, instructions that aren't emulated)",
        ),
        (
            &guest.single_step_block_irq,
            "single steps with interrupts held back",
        ),
        (&guest.hardware_breakpoint, "hardware breakpoints"),
        (&guest.watchpoint, "watchpoints"),
    ] {
        if !works(check.as_ref()) {
            lacks.push(what);
        }
    }
    let slow = emulated
        .map(|rate| format!(", slowly ({:.1} M instructions/s)", rate / 1e6))
        .unwrap_or_default();
    let (but, mut advice) = match lacks.is_empty() {
        true => (" and breakpoint probes work".to_owned(), Vec::new()),
        false => (
            format!(
                " and breakpoint probes work, but not {}",
                lacks.join(", nor ")
            ),
            vec!["a newer host kernel may have what doesn't work here".into()],
        ),
    };
    advice.extend(has.map(slower_without).unwrap_or_default());
    Conclusion {
        runs_linux: true,
        verdict: format!("Linux boots on this KVM{slow}{but}"),
        advice,
    }
}

/// What keeps breakpoint probes from working, if anything.
fn int3_flaw(int3: &Int3) -> Option<String> {
    if int3.shape != Int3Shape::DebugExit {
        return Some(format!("an int3 makes no debug exit ({})", int3.detail));
    }
    if !int3.give_back.iter().any(|way| way.ok) {
        return Some("an int3 of the guest's own can't be given back to it".into());
    }
    None
}

fn elsewhere(cpu: &Cpu) -> Vec<String> {
    let machine = match cpu.virtualization {
        Virtualization::None => "or run on a machine with VMX (Intel) or SVM (AMD)".into(),
        has => format!("or load upstream kvm-intel or kvm-amd: this processor has {has}"),
    };
    vec![USE_LAB.into(), machine]
}

#[cfg(test)]
mod tests {
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
}
