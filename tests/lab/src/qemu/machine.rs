//! QEMU's arguments.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Qemu;
use crate::process::{self, COMMAND_LINE, Options, Process, Running};

impl Qemu {
    /// Starts the lab machine.
    pub(crate) fn start(&self, options: &Options<'_>) -> io::Result<Running> {
        let (ours, theirs) = UnixStream::pair()?;
        let initramfs = process::unnamed_file(|file| file.write_all(&options.initramfs))?;
        let (initramfs_fd, report_fd) = (initramfs.as_raw_fd(), theirs.as_raw_fd());
        let mut command = Command::new(&self.program);
        for dir in &self.firmware {
            command.arg("-L").arg(dir);
        }
        command
            .args(["-machine", "q35,hpet=off"])
            .args(["-accel", "tcg,thread=multi"])
            .args(["-cpu", "EPYC,+svm,+npt"])
            .args(["-smp", &options.smp.to_string()])
            .args(["-m", &options.memory_mib.to_string()])
            .args(["-nodefaults", "-no-user-config"])
            .args(["-display", "none", "-no-reboot"])
            .arg("-kernel")
            .arg(options.kernel)
            .args(["-initrd", &format!("/proc/self/fd/{initramfs_fd}")])
            .args(["-append", COMMAND_LINE])
            .arg("-chardev")
            .arg(console(options.log))
            .args(["-chardev", &format!("socket,id=report,fd={report_fd}")])
            .args(["-serial", "chardev:console", "-serial", "chardev:report"]);
        if options.live_console {
            command.stdout(io::stderr());
        } else {
            command.stdout(Stdio::null());
        }
        let process = Process::start(&mut command, vec![initramfs_fd, report_fd], options.log)?;
        // `theirs` is closed here: only QEMU's copy keeps the line open.
        Ok(Running {
            process,
            report: ours.into(),
        })
    }
}

/// QEMU's option for L1's console: standard output, and the log.
fn console(log: &Path) -> OsString {
    let mut text = OsString::from("stdio,id=console,signal=off,logappend=on,logfile=");
    // QEMU's option syntax doubles a comma inside a value.
    text.push(log.to_string_lossy().replace(',', ",,"));
    text
}
