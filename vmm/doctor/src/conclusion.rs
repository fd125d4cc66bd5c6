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

/// What this KVM lacks of what the monitor needs for any VM.
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
mod tests;
