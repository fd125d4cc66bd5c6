//! From a kernel's first instruction to its PID 1, in vmprobe and in QEMU's microvm (BN14).

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::kvm_trace::KvmTrace;
use super::{Figure, rounded};
use crate::context::Context;
use crate::linux::guest::{QUIET, files};
use crate::test::{Failure, wrong};

/// Debian's QEMU, and where its firmware is.
const QEMU: &str = "qemu-microvm";
const FIRMWARE: &str = "/usr/share/qemu";
const MEMORY: &str = "512";
/// Boots of each, in the order ours, QEMU's, QEMU's, ours.
const REPEATS: usize = 3;

/// Which monitor boots the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Monitor {
    Ours,
    Qemu,
}

const ABBA: [Monitor; 4] = [Monitor::Ours, Monitor::Qemu, Monitor::Qemu, Monitor::Ours];

/// A monitor that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _it_has_ended = self.0.wait();
    }
}

/// Measures the time of a boot in vmprobe over that in QEMU.
///
/// # Errors
/// If a guest doesn't boot. If KVM can't be traced, nothing is measured.
pub fn measure(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut trace = match KvmTrace::start() {
        Ok(trace) => trace,
        Err(error) => {
            crate::say(&format!(
                "BN14 isn't measured: KVM can't be traced: {error}"
            ));
            return Ok(());
        }
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..REPEATS {
        for monitor in ABBA {
            let time = boot(cx, monitor, &mut trace)?;
            times[usize::from(monitor == Monitor::Qemu)].push(time);
        }
    }
    let [ours, qemu] = times.map(|mut all| {
        all.sort_unstable();
        all
    });
    let middle = |all: &[Duration]| all[all.len() / 2].as_secs_f64();
    let ratio = middle(&ours) / middle(&qemu);
    let verdict = if ratio <= 1.0 { "kept" } else { "missed" };
    let range = |all: &[Duration]| {
        let [first, middle, last] = [0, all.len() / 2, all.len() - 1].map(|index| all[index]);
        format!("{first:.1?} to {last:.1?}, median {middle:.1?}")
    };
    figures.push(Figure {
        id: "BN14",
        value: rounded(ratio),
        unit: "ratio",
        place,
        how: "Debian's 6.12 from its first instruction to its PID 1, entered by PVH, 1 vCPU, a serial console: ours / \
              QEMU 7.2's microvm, same KVM, same initramfs"
            .to_owned(),
        note: format!(
            "limit 1.0: {verdict}; {} boots each: ours {}; QEMU's {}",
            2 * REPEATS,
            range(&ours),
            range(&qemu)
        ),
    });
    Ok(())
}

fn boot(cx: &Context, monitor: Monitor, trace: &mut KvmTrace) -> Result<Duration, Failure> {
    trace.clear()?;
    let cmdline = format!("console=ttyS0 {QUIET} -- workload=mark");
    let (kernel, initramfs) = (cx.file(files::VMLINUX_6_12), cx.file(files::INITRAMFS));
    let mut command = match monitor {
        Monitor::Ours => {
            let mut ours = Command::new(cx.program("vmprobe"));
            ours.args(["run", "--boot", "pvh", "--memory", MEMORY]);
            ours.args(["--kernel", &kernel, "--initramfs", &initramfs]);
            ours.args(["--cmdline", &cmdline]);
            ours
        }
        Monitor::Qemu => {
            // The options that QEMU's manual has for this machine (docs/system/i386/microvm.rst).
            let mut qemu = Command::new(cx.file(QEMU));
            qemu.args(["-M", "microvm", "-enable-kvm", "-cpu", "host", "-m", MEMORY]);
            qemu.args(["-L", FIRMWARE, "-nodefaults", "-no-user-config"]);
            qemu.args(["-display", "none", "-serial", "stdio", "-no-reboot"]);
            qemu.args(["-kernel", &kernel, "-initrd", &initramfs]);
            qemu.args(["-append", &cmdline]);
            qemu
        }
    };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn();
    let child = child.map_err(Failure::io(format!("start {monitor:?}")))?;
    let mut running = Running(child);
    let time = trace.boot(|| !running.has_ended());
    time.map_err(|error| wrong!("{monitor:?}: {error}"))
}
