//! A guest's virtio console: a shell there, by `vmprobe run --console virtio`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use vmprobe_client::Client;

use super::guest::{QUIET, files};
use super::root::unpack_modules;
use crate::context::Context;
use crate::terminal::Terminal;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_shell_on_the_virtio_console_of_6_12_gets_all_input_and_shows_all_output",
        ids: &["VM05", "VM09"],
        needs: Needs::Linux,
        run: |cx| shell(cx, files::BZIMAGE_6_12, "6.12."),
    },
    Test {
        name: "a_shell_on_the_virtio_console_of_6_1_gets_all_input_and_shows_all_output",
        ids: &["VM05", "VM09"],
        needs: Needs::Linux,
        run: |cx| shell(cx, files::BZIMAGE_6_1, "6.1."),
    },
];

/// The name that `vmprobe run` gives its VM.
const VM: &str = "guest";
/// Further names of the shell's program.
const NAMES: [&str; 6] = ["sh", "cat", "echo", "poweroff", "seq", "stty"];
/// PID 1: a shell on the virtio console, without line editing of its own.
const INIT: &str = "#!/bin/sh
exec sh -c 'stty -echo; echo ready; exec sh' </dev/hvc0 >/dev/hvc0 2>&1
";
/// Numbers that the guest writes, and lines that are typed.
const NUMBERS: u32 = 8000;
const LINES: u32 = 300;

/// A root folder with a shell.
fn make_root(cx: &Context, root: &Path) -> std::io::Result<()> {
    for name in ["bin", "sbin"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy(cx.file("busybox"), root.join("bin/busybox"))?;
    for name in NAMES {
        symlink("busybox", root.join("bin").join(name))?;
    }
    let init = root.join("sbin/init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, Permissions::from_mode(0o755))
}

fn shell(cx: &Context, kernel: &'static str, release: &str) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let (root, modules) = (folder.path().join("root"), folder.path().join("modules"));
    let made = make_root(cx, &root).and_then(|()| unpack_modules(cx, release, &modules));
    made.map_err(Failure::io("make a root folder"))?;
    let mut command = Command::new(cx.program("vmprobe"));
    command
        .args(["run", "--console", "virtio", "--kernel", &cx.kernel(kernel)])
        .args(["--memory", "256", "--init", "--root"])
        .arg(root)
        .arg("--modules")
        .arg(modules)
        .args(["--probe", "written=hvc_write count"])
        .args(["--cmdline", &format!("{QUIET} console=hvc0")]);
    let mut terminal = Terminal::start(&mut command)?;
    terminal.wait_for("ready\r\n")?;

    terminal.type_line(&format!("seq {NUMBERS}; echo end"))?;
    let shown = terminal.wait_for("end\r\n")?;
    let expected: String = (1..=NUMBERS)
        .map(|number| format!("{number}\r\n"))
        .collect();
    check!(
        shown.ends_with(&expected),
        "not all numbers are shown: {shown}"
    );

    let line = |number| format!("{number} {}", "x".repeat(60));
    terminal.type_line("cat >/typed; cat /typed; echo end")?;
    for number in 0..LINES {
        terminal.type_line(&line(number))?;
    }
    // Ctrl-D ends the input.
    terminal.type_bytes(&[4])?;
    let shown = terminal.wait_for("end\r\n")?;
    let expected: String = (0..LINES).map(|number| line(number) + "\r\n").collect();
    check!(
        shown.ends_with(&expected),
        "not all lines are shown: {shown}"
    );

    let endpoint = terminal.endpoint.clone();
    let mut written = 0;
    cx.block_on(async {
        let probes = Client::connect(&endpoint).await?.list_probes(VM).await?;
        let probe = probes.first().ok_or_else(|| wrong!("there is no probe"))?;
        written = probe.hits;
        pass_with(String::new())
    })?;
    check!(written > 0, "nothing was written to the virtio console");
    terminal.type_line("poweroff -f")?;
    check_eq!(terminal.end()?, Some(0), "exit code of vmprobe run");
    pass_with(format!("{written} writes"))
}
