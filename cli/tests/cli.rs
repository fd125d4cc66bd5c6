//! The program `vmprobe` as far as it needs no guest: exit codes, and errors that say what to do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn vmprobe(args: &[&str]) -> Command {
    vmprobe_at(Path::new(env!("CARGO_BIN_EXE_vmprobe")), args)
}

fn vmprobe_at(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_remove("VMPROBE_SERVER");
    command.env("VMPROBE_CONFIG", "/dev/null");
    command
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a folder with `vmprobe` in it and, as `vmprobed`, the given program.
fn installed(name: &str, server: Option<&str>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_vmprobe"), folder.join("vmprobe")).unwrap();
    if let Some(server) = server {
        symlink(server, folder.join("vmprobed")).unwrap();
    }
    folder.join("vmprobe")
}

#[test]
fn without_a_server_it_says_how_to_start_one() {
    // A listener that is closed again leaves a port where nothing answers.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let output = vmprobe(&["probe", "list", "--server", &free])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = errors(&output);
    assert!(
        text.starts_with(&format!("vmprobe: no server at http://{free}")),
        "{text}"
    );
    assert!(text.contains("start one there with `vmprobed`"), "{text}");
}

#[test]
fn the_server_may_stand_in_the_environment() {
    let output = vmprobe(&["vm", "list"])
        .env("VMPROBE_SERVER", "ftp://example")
        .output()
        .unwrap();
    assert!(errors(&output).contains("`ftp://example` is not a server address"));
}

#[test]
fn a_bad_probe_is_exit_code_2_before_anything_else_happens() {
    for args in [
        &["probe", "add", "vfs_read+"][..],
        &["vm", "create", "--kernel", "k", "--probe", "vfs_read+"],
        &["run", "--kernel", "k", "--probe", "vfs_read+"],
        &["trace", "p vfs_read+"],
        &["record", "-o", "x.txt", "p vfs_read+"],
        &["latency", "vfs_read+"],
    ] {
        let output = vmprobe(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = errors(&output);
        let mut lines = text.lines().skip_while(|line| !line.starts_with("1 |"));
        let shown = lines.next().unwrap();
        assert!(shown.ends_with("vfs_read+"), "{text}");
        let caret = lines.next().unwrap().find('^');
        assert_eq!(caret, Some(shown.len()), "{text}");
    }
}

#[test]
fn a_bad_probe_on_the_guest_s_command_line_is_found_before_the_guest_starts() {
    for command in [&["run", "--kernel"][..], &["boot-timeline"]] {
        let output = vmprobe(command)
            .args(["k", "--cmdline", "quiet vmprobe.probe=p,a;p,vfs_read+"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        let text = errors(&output);
        assert!(
            text.ends_with("1 | p,vfs_read+\n  |            ^\n"),
            "{text}"
        );
    }
}

#[test]
fn an_option_that_does_not_fit_its_probe_is_pointed_at() {
    let output = vmprobe(&["probe", "add", "--post", "r vfs_read"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = errors(&output);
    assert!(
        text.contains("only an instruction's probe has post events"),
        "{text}"
    );
    assert!(
        text.ends_with("1 | r vfs_read post\n  |            ^^^^\n"),
        "{text}"
    );
}

#[test]
fn help_names_the_kernel_s_files_for_the_same_things() {
    for (command, file) in [
        ("arm", "echo 1 > /sys/kernel/debug/kprobes/enabled"),
        ("disarm", "echo 0 > /sys/kernel/debug/kprobes/enabled"),
        ("blacklist", "/sys/kernel/debug/kprobes/blacklist"),
        ("list", "/sys/kernel/debug/kprobes/list"),
        ("add", "kprobe_events"),
    ] {
        let output = vmprobe(&["probe", command, "--help"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(file), "{command}: {text}");
    }
}

#[test]
fn help_of_commands_that_trace_has_examples() {
    for command in [
        "trace", "record", "stack", "flame", "latency", "top", "list", "types",
    ] {
        let output = vmprobe(&[command, "--help"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let example = format!("Examples:\n  vmprobe {command}");
        assert!(text.contains(&example), "{command}: {text}");
    }
}

#[test]
fn wrong_arguments_are_exit_code_2() {
    for args in [
        &["probe", "rm"][..],
        &["probe", "enable"],
        &["probe", "disable"],
        &["probe", "list", "--kernel", "--json"],
        &["symbols"],
        &["trace", "--count", "0"],
        &["trace", "--seconds", "0"],
        &["trace", "--json", "--header"],
        &["trace", "open", "--filter", "pid == 1"],
        &["trace", "p vfs_read", "--filter", "pid = 1"],
        &["record", "p vfs_read"],
        &["record", "-o", "events", "p vfs_read"],
        &["flame", "-o", "x.txt", "p vfs_read"],
        &["latency"],
        &["latency", "p vfs_read"],
        &["types"],
        &["probe", "list", "--kernel", "--wide"],
        &["run", "--kernel", "k", "--vcpus", "0"],
        &["run", "--kernel", "k", "--memory", "0"],
        &["nonsense"],
    ] {
        assert_eq!(
            vmprobe(args).output().unwrap().status.code(),
            Some(2),
            "{args:?}"
        );
    }
}

#[test]
fn doctor_is_the_server_s_own() {
    let echo = installed("doctor-echo", Some("/bin/echo"));
    let output = vmprobe_at(&echo, &["doctor", "--json"]).output().unwrap();
    assert_eq!(output.stdout, b"doctor --json\n");
    assert_eq!(output.status.code(), Some(0));

    let failing = installed("doctor-false", Some("/bin/false"));
    let output = vmprobe_at(&failing, &["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn run_without_the_server_program_says_where_it_was_looked_for() {
    let alone = installed("run-alone", None);
    let output = vmprobe_at(&alone, &["run", "--kernel", "k"])
        .env("PATH", "")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = errors(&output);
    assert!(
        text.contains("`vmprobed` is looked for beside this program, then in PATH"),
        "{text}"
    );
}

#[test]
fn run_with_a_server_that_does_not_start_fails_with_a_code_no_guest_has() {
    for server in ["/bin/false", "/bin/echo"] {
        let program = installed(&format!("run{}", server.replace('/', "-")), Some(server));
        let output = vmprobe_at(&program, &["run", "--kernel", "k"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{server}");
        assert!(
            errors(&output).contains("ended before it listened"),
            "{server}"
        );
    }
}

#[test]
fn run_says_when_it_can_t_write_the_events() {
    let args = ["run", "--kernel", "k", "--events", "/nonexistent/events"];
    let output = vmprobe(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(errors(&output).contains("can't write events to /nonexistent/events"));
}
