//! Bochs' configuration, and L1's way into it by CD.

use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::{BIOS, Bochs, LOADER, LOADER_MODULE, VGA_BIOS, cd};
use crate::emulator::BochsCpu;
use crate::process::{self, COMMAND_LINE, Options, Process, Running};

/// Added to the kernel's command line. A panic ends the machine by a triple fault, because Bochs would boot again after
/// any other reset. Every character of the console takes the time of a serial line, and moving the kernel takes a
/// while, too. The kernel would wait for a mouse and a keyboard to answer.
const MORE_ARGUMENTS: &str = "quiet nokaslr reboot=triple i8042.noaux i8042.nokbd";
/// Most memory that Bochs keeps in its own, in MiB; more is in a file.
const MOST_HOST_MEMORY: u32 = 2048;

impl Bochs {
    /// Starts the lab machine with this CPU.
    pub(crate) fn start(&self, cpu: &BochsCpu, options: &Options<'_>) -> io::Result<Running> {
        let cd = process::unnamed_file(|file| self.write_cd(file, options))?;
        let (console, console_end) = io::pipe()?;
        let (report, report_end) = io::pipe()?;
        let fds = [
            &cd.as_raw_fd(),
            &console_end.as_raw_fd(),
            &report_end.as_raw_fd(),
        ]
        .map(|fd| *fd);
        let text = configuration(cpu, options, fds);
        let file = process::unnamed_file(|file| file.write_all(text.as_bytes()))?;

        let mut command = Command::new(&self.program);
        command
            .args(["-q", "-f", &format!("/dev/fd/{}", file.as_raw_fd())])
            // Relative names of firmware in the configuration start from here.
            .current_dir(&self.folder)
            .stdout(Stdio::null());
        let mut inherited = vec![file.as_raw_fd()];
        inherited.extend(fds);
        let process = Process::start(&mut command, inherited, options.log)?;
        // Our copies of the ends are closed here: only those of Bochs keep the lines open.
        drop((console_end, report_end));
        copy_console(console, options.log, options.live_console)?;
        Ok(Running {
            process,
            report: report.into(),
        })
    }

    fn write_cd(&self, to: &mut dyn Write, options: &Options<'_>) -> io::Result<()> {
        let read = |name| fs::read(self.folder.join(name));
        let kernel = fs::read(options.kernel)?;
        let menu = format!(
            "DEFAULT l1\nPROMPT 0\nLABEL l1\nLINUX /linux\nINITRD /initrd\n\
             APPEND {COMMAND_LINE} {MORE_ARGUMENTS}\n"
        );
        let files: [cd::CdFile<'_>; 5] = [
            ("ISOLINUX.BIN;1", &read(LOADER)?),
            ("ISOLINUX.CFG;1", menu.as_bytes()),
            ("LDLINUX.C32;1", &read(LOADER_MODULE)?),
            ("LINUX.;1", &kernel),
            ("INITRD.;1", &options.initramfs),
        ];
        cd::write(to, &files)
    }
}

/// The configuration file; `fds` are the CD, the console and the report.
///
/// The clock starts at the same time in each run, and depends on instructions alone, so that runs can be repeated
/// exactly.
fn configuration(cpu: &BochsCpu, options: &Options<'_>, fds: [i32; 3]) -> String {
    let BochsCpu {
        model,
        quantum,
        ips,
    } = cpu;
    let (count, memory) = (options.smp, options.memory_mib);
    let host = memory.min(MOST_HOST_MEMORY);
    let [cd, console, report] = fds;
    format!(
        "memory: guest={memory}, host={host}\n\
         romimage: file={BIOS}, options=fastboot\n\
         vgaromimage: file={VGA_BIOS}\n\
         cpu: model={model}, count={count}, quantum={quantum}, ips={ips}, \
         reset_on_triple_fault=0, ignore_bad_msrs=1\n\
         ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
         ata0-master: type=cdrom, path=/dev/fd/{cd}, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev=/dev/fd/{console}\n\
         com2: enabled=1, mode=file, dev=/dev/fd/{report}\n\
         display_library: nogui\n\
         clock: sync=none, time0=1735689600\n\
         pci: enabled=1, chipset=i440fx\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n\
         debug: action=ignore\n"
    )
}

/// Copies L1's console into the log, and to standard error if that is asked for, until it ends.
fn copy_console(mut console: PipeReader, log: &Path, live: bool) -> io::Result<()> {
    let mut log = File::options().append(true).open(log)?;
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = console.read(&mut buffer) {
            // A log that can't be written is no reason to stop the machine.
            let _ = log.write_all(&buffer[..len]);
            if live {
                let _ = io::stderr().write_all(&buffer[..len]);
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_what_bochs_keeps_is_the_guests_alone() {
        let options = |memory_mib| Options {
            smp: 2,
            memory_mib,
            kernel: Path::new("/k"),
            initramfs: Vec::new(),
            log: Path::new("/l"),
            live_console: false,
        };
        let text = configuration(&BochsCpu::default(), &options(3000), [7, 8, 9]);
        assert!(
            text.starts_with("memory: guest=3000, host=2048\n"),
            "{text}"
        );
        assert!(text.contains("count=2, quantum=16,"), "{text}");
        let text = configuration(&BochsCpu::default(), &options(1000), [7, 8, 9]);
        assert!(
            text.starts_with("memory: guest=1000, host=1000\n"),
            "{text}"
        );
    }
}
