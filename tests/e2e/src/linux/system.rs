//! A distribution's disk: Debian with systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use vmprobe_client::Client;
use vmprobe_client::v1::Probe;

use super::guest::{QUIET, files};
use super::jumps::is_jump;
use super::root::unpack_modules;
use crate::context::Context;
use crate::terminal::Terminal;
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "debian_with_systemd_boots_from_its_disk_to_a_login_under_probes_on_1_vcpu",
        ids: &["VM05", "VM09"],
        needs: Needs::Linux,
        run: |cx| with_disk(cx, |cx, disk| login(cx, disk, "1")),
    },
    Test {
        name: "debian_with_systemd_boots_from_its_disk_to_a_login_under_probes_on_4_vcpus",
        ids: &["VM05", "VM09"],
        needs: Needs::Linux,
        run: |cx| with_disk(cx, |cx, disk| login(cx, disk, "4")),
    },
    Test {
        name: "cloud_init_sets_debian_up_by_what_the_command_line_names",
        ids: &["VM05", "VM09"],
        needs: Needs::Linux,
        run: |cx| with_disk(cx, seeded),
    },
    Test {
        name: "a_root_without_a_system_is_told_and_ends_the_guest_by_a_panic",
        ids: &["VM09"],
        needs: Needs::Linux,
        run: without_system,
    },
];

/// The name that `vmprobe run` gives its VM.
const VM: &str = "guest";
/// Exit code of `vmprobe run` when the guest has panicked.
const PANIC: i32 = 4;
/// Root's password on the disk, as `tests/lab/build-debian-disk.sh` sets it.
const PASSWORD: &str = "vmprobe";
/// A file and how often the guest opens it; the bytes of a read from another file, and how many
/// such reads there are.
const MARKER: &str = "/root/marker";
const OPENS: u64 = 50;
const READ_LEN: u64 = 12345;
const READS: u64 = 37;

/// The user data for cloud-init.
const USER_DATA: &str = "#cloud-config
hostname: seeded
users:
  - name: guest
    plain_text_passwd: told by the seed
    lock_passwd: false
    shell: /bin/bash
write_files:
  - path: /etc/seeded
    content: of the seed
runcmd:
  - [sh, -c, 'cat /etc/seeded >/var/tmp/ran']
";

/// A copy of the disk, and the kernel's modules for it.
pub(super) struct Disk {
    folder: TempDir,
}

impl Disk {
    /// The disk as an argument of `--root`, with further words.
    fn root(&self, words: &str) -> String {
        format!("{}{words}", self.folder.path().join("disk").display())
    }

    /// A path beside it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `vmprobe run` with it as the root.
    pub(super) fn run(&self, cx: &Context, words: &str, options: &[&str]) -> Command {
        let mut command = Command::new(cx.program("vmprobe"));
        command
            .args(["run", "--kernel", &cx.kernel(files::BZIMAGE_6_12)])
            .args(["--root", &self.root(words), "--modules"])
            .arg(self.folder.path().join("modules"))
            .args(options);
        command
    }
}

/// The kernel's command line.
pub(super) fn cmdline() -> String {
    format!("console=ttyS0 {QUIET}")
}

/// Runs a test if the disk exists.
pub(super) fn with_disk(cx: &Context, test: impl Fn(&Context, &Disk) -> TestResult) -> TestResult {
    let image = cx.file("debian.qcow2");
    if !Path::new(&image).exists() {
        return Ok(Outcome::Skip("Debian's disk isn't here".to_owned()));
    }
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let made = fs::copy(image, folder.path().join("disk"))
        .and_then(|_| unpack_modules(cx, "6.12.", &folder.path().join("modules")));
    made.map_err(Failure::io("copy Debian's disk"))?;
    test(cx, &Disk { folder })
}

/// Logs in as root.
pub(super) fn log_in(terminal: &mut Terminal) -> Result<(), Failure> {
    terminal.log_in("login: ", ("root", PASSWORD), "# ")
}

fn login(cx: &Context, disk: &Disk, vcpus: &str) -> TestResult {
    let opened =
        format!("p:opened do_sys_openat2 nojump name=$arg2:ustring if name == \"{MARKER}\"");
    let read = format!("p:read vfs_read len=$arg3 if len == {READ_LEN}");
    let options = [
        "--init",
        "--vcpus",
        vcpus,
        "--memory",
        "512",
        "--cmdline",
        &cmdline(),
        "--probe",
        &opened,
        "--probe",
        &read,
    ];
    let events = disk.folder.path().join("events");
    let mut command = disk.run(cx, ",qcow2,rw", &options);
    let mut terminal = Terminal::start(command.arg("--events").arg(&events))?;
    log_in(&mut terminal)?;
    let state = terminal.command("systemctl is-system-running --wait");
    let state =
        state.map_err(|error| wrong!("{error}; {:?}", terminal.command("systemctl --failed")))?;
    check_eq!(state.trim(), "running", "what systemd says");
    let cpus = terminal.command("nproc")?;
    check_eq!(cpus.trim(), vcpus, "CPUs of the system");
    terminal.command(&format!("echo kept >{MARKER}"))?;
    // The shell has opened it once for writing.
    terminal.command(&format!(
        "for i in $(seq {}); do read x <{MARKER}; done",
        OPENS - 1
    ))?;
    terminal.command(&format!(
        "dd if=/dev/zero of=/dev/null bs={READ_LEN} count={READS}"
    ))?;

    let endpoint = terminal.endpoint.clone();
    cx.block_on(async {
        let probes = Client::connect(&endpoint).await?.list_probes(VM).await?;
        for (name, hits, as_jump) in [("opened", OPENS, false), ("read", READS, true)] {
            let probe = probes.iter().find(|probe| probe.name == name);
            let probe: &Probe = probe.ok_or_else(|| wrong!("no probe {name}"))?;
            check_eq!(probe.hits, hits, "hits of {name}");
            check_eq!(probe.missed, 0, "missed hits of {name}");
            check_eq!(is_jump(probe), as_jump, "whether {name} is a jump");
        }
        pass_with(String::new())
    })?;
    terminal.type_line("systemctl poweroff")?;
    check_eq!(terminal.end()?, Some(0), "exit code of vmprobe run");
    let told = fs::read_to_string(&events).map_err(Failure::io("read the events"))?;
    let count = |name: &str| told.lines().filter(|line| line.contains(name)).count() as u64;
    check_eq!(count(" opened: "), OPENS, "events of opened");
    check_eq!(count(" read: "), READS, "events of read");

    // The system's changes are on its disk; a command there leaves the disk as it is.
    let shell = ["--", "/bin/sh", "-c", "cat /root/marker && rm /root/marker"];
    for _ in 0..2 {
        let output = disk.run(cx, ",qcow2", &shell).output();
        let output = output.map_err(Failure::io("run vmprobe run"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        check_eq!(output.stdout, b"kept\n", "the file in the root: {errors}");
    }
    pass_with(format!("{} hits", OPENS + READS))
}

fn seeded(cx: &Context, disk: &Disk) -> TestResult {
    let user_data = disk.folder.path().join("user-data");
    fs::write(&user_data, USER_DATA).map_err(Failure::io("write what cloud-init is told"))?;
    let options = [
        "--init",
        "--memory",
        "512",
        "--cmdline",
        &cmdline(),
        "--user-data",
    ];
    let mut command = disk.run(cx, ",qcow2", &options);
    let mut terminal = Terminal::start(command.arg(&user_data))?;
    // The system has its given name before anybody can log in.
    terminal.log_in("seeded login: ", ("guest", "told by the seed"), "$ ")?;
    let state = terminal.command("systemctl is-system-running --wait");
    let state =
        state.map_err(|error| wrong!("{error}; {:?}", terminal.command("systemctl --failed")))?;
    check_eq!(state.trim(), "running", "what systemd says");
    for file in ["/etc/seeded", "/var/tmp/ran"] {
        let text = terminal.command(&format!("cat {file}; echo"))?;
        check_eq!(text.trim(), "of the seed", "{file}");
    }
    terminal.type_line("su -c 'systemctl poweroff'")?;
    terminal.wait_for("Password: ")?;
    terminal.type_line(PASSWORD)?;
    check_eq!(terminal.end()?, Some(0), "exit code of vmprobe run");
    pass_with(String::new())
}

fn without_system(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let (root, modules) = (folder.path().join("root"), folder.path().join("modules"));
    let made = fs::create_dir(&root).and_then(|()| unpack_modules(cx, "6.12.", &modules));
    made.map_err(Failure::io("make a root folder"))?;
    let mut command = Command::new(cx.program("vmprobe"));
    command.args(["run", "--kernel", &cx.kernel(files::BZIMAGE_6_12)]);
    command.args([
        "--memory",
        "256",
        "--cmdline",
        &cmdline(),
        "--init",
        "--root",
    ]);
    command.arg(&root).arg("--modules").arg(&modules);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(Failure::io("run vmprobe run"))?;
    let told = String::from_utf8_lossy(&output.stdout);
    check_eq!(output.status.code(), Some(PANIC), "exit code: {told}");
    check!(
        told.contains("can't run /sbin/init of the guest's root"),
        "{told}"
    );
    pass_with(String::new())
}
