//! The findings, as data and as text.

use std::fmt;

use serde::Serialize;

/// All that was found out about this machine's KVM.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The processor.
    pub cpu: Cpu,
    /// The device and what it offers.
    pub kvm: KvmFindings,
    /// What small guests saw; none when KVM can't be opened.
    pub guest: Option<GuestFindings>,
    /// Whether a Linux guest boots here and its breakpoint probes work: an `int3`
    /// ends in a debug exit and can be given back, and all instructions run.
    pub runs_linux: bool,
    /// The conclusion, in a sentence.
    pub verdict: String,
    /// What to do about it; empty when there is nothing to do.
    pub advice: Vec<String>,
}

/// The processor, from its CPUID.
#[derive(Clone, Debug, Serialize)]
pub struct Cpu {
    /// The vendor string of leaf 0, such as `GenuineIntel`.
    pub vendor: String,
    /// Whether this machine itself runs under a hypervisor (leaf 1, ECX bit 31).
    pub hypervisor: bool,
    /// The virtualization instructions it offers.
    pub virtualization: Virtualization,
}

/// A processor's virtualization instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Virtualization {
    /// Intel VMX (leaf 1, ECX bit 5).
    Vmx,
    /// AMD SVM (leaf 80000001h, ECX bit 2).
    Svm,
    /// None that this machine can see.
    None,
}

impl fmt::Display for Virtualization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vmx => "VMX",
            Self::Svm => "SVM",
            Self::None => "neither VMX nor SVM",
        })
    }
}

/// The device and what it offers.
#[derive(Clone, Debug, Serialize)]
pub struct KvmFindings {
    /// Whether it can be opened.
    pub device: Device,
    /// What `KVM_GET_API_VERSION` returns; 12 for every KVM since 2007.
    pub api_version: Option<i32>,
    /// The extensions that a host of probes uses.
    pub capabilities: Option<Capabilities>,
}

/// Whether KVM's device can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Device {
    /// It can.
    Ok,
    /// There is no such file, or no driver behind it.
    Missing {
        /// Where it should be.
        path: String,
    },
    /// This user may not open it.
    NoPermission {
        /// Where it is.
        path: String,
        /// Its mode bits, in octal.
        mode: String,
        /// The group that owns it, by name where it has one.
        group: String,
    },
    /// It opens, but isn't a KVM of API version 12.
    NotKvm {
        /// Where it is.
        path: String,
        /// What it gave for a version; -1 when it doesn't know the question.
        api_version: i32,
    },
    /// It can't be opened for another reason.
    Unusable {
        /// Where it is.
        path: String,
        /// The system's reason.
        error: String,
    },
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("opens"),
            Self::Missing { path } => write!(f, "there is no {path}"),
            Self::NoPermission { path, mode, group } => {
                write!(
                    f,
                    "{path} may not be opened by this user (mode {mode}, group {group})"
                )
            }
            Self::NotKvm { path, api_version } => {
                write!(
                    f,
                    "{path} is not KVM (it gives API version {api_version}, not 12)"
                )
            }
            Self::Unusable { path, error } => write!(f, "{path} can't be opened: {error}"),
        }
    }
}

/// Extensions that a host of probes uses.
#[derive(Clone, Debug, Serialize)]
pub struct Capabilities {
    /// `KVM_CAP_SYNC_REGS`: 1 registers, 2 system registers, 4 events in the
    /// shared `kvm_run` page.
    pub sync_regs: u32,
    /// `KVM_CAP_SET_GUEST_DEBUG2`: the `KVM_GUESTDBG_` flags it knows; 0 when it
    /// doesn't tell.
    pub guest_debug_flags: u32,
    /// Whether `KVM_GUESTDBG_BLOCKIRQ` is among them.
    pub block_irq: bool,
    /// `KVM_CAP_SET_GUEST_DEBUG`.
    pub guest_debug: bool,
    /// `KVM_CAP_USER_MEMORY`.
    pub user_memory: bool,
    /// `KVM_CAP_IMMEDIATE_EXIT`.
    pub immediate_exit: bool,
    /// `KVM_CAP_IRQCHIP`.
    pub irqchip: bool,
    /// `KVM_CAP_IRQFD`.
    pub irqfd: bool,
    /// `KVM_CAP_NR_MEMSLOTS`.
    pub memslots: usize,
    /// `KVM_CAP_MAX_VCPUS`.
    pub max_vcpus: usize,
    /// `KVM_CAP_TSC_DEADLINE_TIMER`.
    pub tsc_deadline: bool,
    /// The vCPU attribute `KVM_VCPU_TSC_OFFSET`.
    pub tsc_offset: bool,
}

/// Something tried, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Whether it did what upstream KVM does.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

impl Check {
    pub(crate) fn ok(detail: impl Into<String>) -> Self {
        Self {
            ok: true,
            detail: detail.into(),
        }
    }

    pub(crate) fn failed(detail: impl Into<String>) -> Self {
        Self {
            ok: false,
            detail: detail.into(),
        }
    }
}

/// What small guests in 64-bit mode saw.
#[derive(Clone, Debug, Serialize)]
pub struct GuestFindings {
    /// Whether such a guest runs at all; where it doesn't, the rest is left out.
    pub starts: Check,
    /// Breakpoint instructions.
    pub int3: Option<Int3>,
    /// `KVM_GUESTDBG_SINGLESTEP`.
    pub single_step: Option<Check>,
    /// `KVM_GUESTDBG_SINGLESTEP` with `KVM_GUESTDBG_BLOCKIRQ`; none where this KVM
    /// doesn't claim it.
    pub single_step_block_irq: Option<Check>,
    /// `KVM_GUESTDBG_USE_HW_BP`, an execution breakpoint.
    pub hardware_breakpoint: Option<Check>,
    /// `KVM_GUESTDBG_USE_HW_BP`, a breakpoint on writes of data.
    pub watchpoint: Option<Check>,
    /// Instructions that a Linux boot needs.
    pub instructions: Vec<Instruction>,
    /// How fast guests run and leave guest mode.
    pub speed: Option<Speed>,
}

/// Breakpoint instructions in the guest.
#[derive(Clone, Debug, Serialize)]
pub struct Int3 {
    /// How an `int3` shows, `KVM_GUESTDBG_USE_SW_BP` being on.
    pub shape: Int3Shape,
    /// What was seen.
    pub detail: String,
    /// The ways of handing an `int3` to the guest's own handler, each tried in a
    /// guest of its own.
    pub give_back: Vec<Reinjection>,
}

/// How an `int3` at CPL 0 shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Int3Shape {
    /// `KVM_EXIT_DEBUG`, exception 3, at the `int3`: upstream KVM.
    DebugExit,
    /// `KVM_EXIT_INTERNAL_ERROR`, emulation failure, at the `int3`.
    InternalError,
    /// The guest's own handler gets it and the host nothing.
    ToGuest,
    /// The guest doesn't come back.
    Hangs,
    /// Something else.
    Other,
}

impl fmt::Display for Int3Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DebugExit => "debug exit",
            Self::InternalError => "internal error",
            Self::ToGuest => "goes to the guest",
            Self::Hangs => "hangs",
            Self::Other => "unknown exit",
        })
    }
}

/// A way of reinjecting an `int3`, which hands it to the guest's handler.
#[derive(Clone, Debug, Serialize)]
pub struct Reinjection {
    /// Its name: `INJECT_BP` (`KVM_SET_GUEST_DEBUG`, RIP at the `int3`) or
    /// `VCPU_EVENTS` (`KVM_SET_VCPU_EVENTS`, RIP moved past the `int3`).
    pub way: &'static str,
    /// Whether the handler got #BP with the address after the `int3`.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

/// An instruction, and whether it ran at CPL 0.
#[derive(Clone, Debug, Serialize)]
pub struct Instruction {
    /// Its mnemonic.
    pub name: &'static str,
    /// Whether it ran and did its work, or isn't needed (see `detail`).
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

/// How fast guests run and leave guest mode.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Instructions a second of a two-instruction loop at CPL 0.
    pub kernel_instructions_per_second: Option<f64>,
    /// Nanoseconds from one port-output exit to the next (a loop of `out; jmp`).
    pub port_exit_ns: Option<f64>,
    /// Nanoseconds from one `int3` exit to the next, with `KVM_GET_REGS` and
    /// `KVM_SET_REGS` to get past it; none where an `int3` makes no exit.
    pub int3_ns: Option<f64>,
}

/// How many instructions' names are printed on a line.
const NAMES_A_LINE: usize = 8;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hypervisor = if self.cpu.hypervisor {
            ", under a hypervisor"
        } else {
            ""
        };
        let Cpu {
            vendor,
            virtualization,
            ..
        } = &self.cpu;
        line(
            f,
            "processor",
            format_args!("{vendor}, {virtualization}{hypervisor}"),
        )?;
        line(f, "KVM device", &self.kvm.device)?;
        if let Some(capabilities) = &self.kvm.capabilities {
            write_capabilities(f, self.kvm.api_version, capabilities)?;
        }
        if let Some(guest) = &self.guest {
            guest.fmt(f)?;
        }
        line(f, "Linux boots", yes(self.runs_linux))?;
        for (number, advice) in self.advice.iter().enumerate() {
            line(f, if number == 0 { "what to do" } else { "" }, advice)?;
        }
        line(f, "verdict", &self.verdict)
    }
}

fn write_capabilities(
    f: &mut fmt::Formatter<'_>,
    version: Option<i32>,
    has: &Capabilities,
) -> fmt::Result {
    line(
        f,
        "KVM API",
        format_args!("version {}", version.unwrap_or(-1)),
    )?;
    line(f, "sync regs", format_args!("{:#x}", has.sync_regs))?;
    let block_irq = if has.block_irq { "with" } else { "without" };
    line(
        f,
        "guest debug flags",
        format_args!("{:#x} ({block_irq} BLOCKIRQ)", has.guest_debug_flags),
    )?;
    let limits = format_args!("{} memory slots, {} vCPUs", has.memslots, has.max_vcpus);
    line(f, "limits", limits)?;
    for (name, there) in [
        ("guest debugging", has.guest_debug),
        ("user memory", has.user_memory),
        ("immediate exit", has.immediate_exit),
        ("irqchip", has.irqchip),
        ("irqfd", has.irqfd),
        ("TSC deadline timer", has.tsc_deadline),
        ("TSC offset", has.tsc_offset),
    ] {
        line(f, name, yes(there))?;
    }
    Ok(())
}

impl fmt::Display for GuestFindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        check_line(f, "tiny guest", self.starts.ok, &self.starts.detail)?;
        if let Some(int3) = &self.int3 {
            let ok = int3.shape == Int3Shape::DebugExit;
            check_line(f, "int3", ok, &format!("{}: {}", int3.shape, int3.detail))?;
            for Reinjection { way, ok, detail } in &int3.give_back {
                // One way is enough, so that the other is no failure.
                let ok = if *ok { "ok" } else { "no" };
                line(
                    f,
                    &format!("  back by {way}"),
                    format_args!("{ok:<4} {detail}"),
                )?;
            }
        }
        for (name, check) in [
            ("single step", &self.single_step),
            ("  with BLOCKIRQ", &self.single_step_block_irq),
            ("hardware breakpoint", &self.hardware_breakpoint),
            ("watchpoint", &self.watchpoint),
        ] {
            if let Some(check) = check {
                check_line(f, name, check.ok, &check.detail)?;
            }
        }
        let (ran, failed): (Vec<_>, Vec<_>) = self.instructions.iter().partition(|i| i.ok);
        for (row, some) in ran.chunks(NAMES_A_LINE).enumerate() {
            let names = some.iter().map(|i| i.name).collect::<Vec<_>>().join(", ");
            let (title, mark) = if row == 0 {
                ("instructions", "ok")
            } else {
                ("", "")
            };
            line(f, title, format_args!("{mark:<4} {names}"))?;
        }
        for Instruction { name, detail, .. } in failed {
            check_line(f, &format!("  {name}"), false, detail)?;
        }
        self.speed.as_ref().map_or(Ok(()), |speed| speed.fmt(f))
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rate) = self.kernel_instructions_per_second {
            let text = format_args!("{:.1} M instructions/s", rate / 1e6);
            line(f, "kernel-mode speed", text)?;
        }
        for (name, time) in [
            ("port exit", self.port_exit_ns),
            ("int3 exit", self.int3_ns),
        ] {
            if let Some(time) = time {
                line(f, name, format_args!("{:.1} us", time / 1e3))?;
            }
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{name:<22} {value}")
}

fn check_line(f: &mut fmt::Formatter<'_>, name: &str, ok: bool, detail: &str) -> fmt::Result {
    line(
        f,
        name,
        format_args!("{:<4} {detail}", if ok { "ok" } else { "FAIL" }),
    )
}

fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}
