//! `vmprobed` as an installed program: its configuration, its messages to systemd, completions and manual pages.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use deployment::faults_of_manual;

/// The longest wait for a message. It's only a safety net: no test waits for time.
const LIMIT: Duration = Duration::from_secs(60);
/// The configuration that is installed.
const INSTALLED: &str = include_str!("../../deploy/vmprobed.toml");

fn vmprobed(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmprobed"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VMPROBED_") {
            command.env_remove(name);
        }
    }
    command
}

/// A server that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _nothing_is_left_to_tell = self.0.wait();
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("installed-{name}"));
    let _there_may_be_none = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns standard error, and the exit code.
fn told(output: &Output) -> (String, Option<i32>) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (text, output.status.code())
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let folder = folder("layers");
    let file = folder.join("vmprobed.toml");
    let socket = |name: &str| format!("unix:{}", folder.join(name).display());
    fs::write(
        &file,
        format!("listen = ['{}']\nsocket-mode = 640", socket("file")),
    )
    .unwrap();
    let config = format!("--config={}", file.display());
    let command_line = format!("--listen={}", socket("command-line"));
    let environment = [("VMPROBED_LISTEN", socket("environment"))];
    for (place, words, variables) in [
        ("file", vec![&*config], &[][..]),
        ("environment", vec![&config], &environment),
        ("command-line", vec![&config, &command_line], &environment),
    ] {
        let mut command = vmprobed(&words);
        command
            .arg("--exit-with-stdin")
            .envs(variables.iter().cloned());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening on {}\n", socket(place)));
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_wrong_configuration_is_exit_code_2_with_its_file_and_line() {
    let file = folder("wrong").join("vmprobed.toml");
    for (text, wrong) in [
        (
            "listen = ['unix:/tmp/x']\nmax-vm = 1",
            ":2: there is no option `max-vm`; there are: ",
        ),
        (
            "listen = ['localhost']",
            ":1: invalid value 'localhost' for '--listen <ADDRESS>': ",
        ),
        (
            "exit-with-stdin = true",
            ":1: there is no option `exit-with-stdin`",
        ),
        ("listen = [", ":1: "),
    ] {
        fs::write(&file, text).unwrap();
        for check in [&["--check-config"][..], &[]] {
            let mut command = vmprobed(check);
            let output = command.env("VMPROBED_CONFIG", &file).output().unwrap();
            let (told, code) = told(&output);
            assert_eq!(code, Some(2), "{told}");
            let start = format!("vmprobed: {}{wrong}", file.display());
            assert!(told.starts_with(&start), "{told}");
        }
    }
    // The options contradict each other.
    fs::write(&file, "tls-cert = '/nowhere'").unwrap();
    let output = vmprobed(&["--check-config", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let (told, code) = told(&output);
    assert_eq!(code, Some(2));
    assert!(told.contains("--tls-key"), "{told}");
}

#[test]
fn the_check_reads_the_files_that_are_named_and_leaves_all_as_it_is() {
    let folder = folder("check");
    let file = folder.join("vmprobed.toml");
    let log = folder.join("audit");
    let listen = folder.join("sock");
    let good = format!(
        "listen = 'unix:{}'\naudit-log = '{}'\n",
        listen.display(),
        log.display()
    );
    let check = || {
        vmprobed(&["--check-config", "--config"])
            .arg(&file)
            .output()
            .unwrap()
    };
    fs::write(&file, &good).unwrap();
    let output = check();
    assert_eq!(told(&output), (String::new(), Some(0)));
    assert_eq!(output.stdout, b"the configuration is good\n");
    assert!(!log.exists() && !listen.exists());

    for (more, wrong) in [
        (
            "tls-cert = '/no/cert'\ntls-key = '/no/key'\nclients = '/no/list'",
            "/no/cert can't be used for TLS",
        ),
        ("plain-text = false\nmax-vms = 1", ""),
    ] {
        fs::write(&file, format!("{good}{more}")).unwrap();
        let (told, code) = told(&check());
        assert_eq!(code, Some(if wrong.is_empty() { 0 } else { 2 }), "{told}");
        assert!(told.contains(wrong), "{told}");
    }
    fs::write(&file, "listen = '0.0.0.0:0'").unwrap();
    let (told, code) = told(&check());
    assert_eq!(code, Some(2));
    assert!(told.contains("is for those who come by TLS"), "{told}");
}

#[test]
fn the_configuration_that_is_installed_is_good_and_so_is_each_line_to_be_uncommented() {
    let file = folder("default").join("vmprobed.toml");
    fs::write(&file, INSTALLED).unwrap();
    let check = || {
        vmprobed(&["--check-config", "--config"])
            .arg(&file)
            .output()
            .unwrap()
    };
    assert_eq!(told(&check()), (String::new(), Some(0)));
    let commented = INSTALLED.lines().filter_map(|line| {
        let option = line.strip_prefix('#')?;
        option.starts_with(char::is_alphabetic).then_some(option)
    });
    let commented: Vec<&str> = commented.collect();
    assert!(commented.len() > 5, "{commented:?}");
    let keys: Vec<&str> = commented
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let kept = INSTALLED
        .lines()
        .filter(|line| !keys.iter().any(|key| line.starts_with(key)));
    let text: Vec<&str> = kept.chain(commented.iter().copied()).collect();
    fs::write(&file, text.join("\n")).unwrap();
    let (told, code) = told(&check());
    // All options are valid, but the certificates aren't there.
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.starts_with("vmprobed: /etc/vmprobe/tls/server.pem can't be used"),
        "{told}"
    );
}

#[test]
fn systemd_is_told_of_the_start_of_being_alive_and_of_the_end() {
    let folder = folder("notify");
    let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let listen = folder.join("vmprobed.sock");
    let server = vmprobed(&[&format!("--listen=unix:{}", listen.display())])
        .env("NOTIFY_SOCKET", folder.join("notify"))
        .env("WATCHDOG_USEC", "20000")
        .spawn()
        .unwrap();
    let mut server = Ended(server);
    let next = || {
        let mut message = [0; 256];
        let length = loop {
            match socket.recv(&mut message) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        String::from_utf8_lossy(&message[..length])
            .trim()
            .to_owned()
    };
    assert_eq!(next(), "READY=1");
    // When the service counts as started, clients can connect.
    std::os::unix::net::UnixStream::connect(&listen).unwrap();
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1");
    }
    let kill = Command::new("kill").arg(server.0.id().to_string()).status();
    assert!(kill.unwrap().success());
    let end = std::iter::repeat_with(next).find(|message| message != "WATCHDOG=1");
    assert_eq!(end.as_deref(), Some("STOPPING=1"));
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}

#[test]
fn each_shell_gets_completions() {
    for (shell, part) in [
        ("bash", "complete -F _vmprobed"),
        ("zsh", "#compdef vmprobed"),
        ("fish", "complete -c vmprobed"),
        ("elvish", "completion:arg-completer[vmprobed]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = vmprobed(&["completions", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let script = String::from_utf8(output.stdout).unwrap();
        for part in [part, "check-config", "doctor"] {
            assert!(script.contains(part), "{part} for {shell}");
        }
    }
}

#[test]
fn manual_pages_of_all_commands_are_without_a_fault() {
    let folder = folder("manual");
    let written = vmprobed(&["manual"]).arg(&folder).output().unwrap();
    assert_eq!(told(&written), (String::new(), Some(0)));
    let mut pages: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    pages.sort();
    let names: Vec<_> = pages
        .iter()
        .filter_map(|page| page.file_name()?.to_str())
        .collect();
    assert_eq!(
        names,
        ["vmprobed-completions.1", "vmprobed-doctor.1", "vmprobed.1"]
    );
    let page = fs::read_to_string(&pages[2]).unwrap();
    for part in ["VMPROBED_CONFIG", "EXIT STATUS", "LIMITS"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(faults_of_manual(&pages).unwrap(), [""; 0]);
}
