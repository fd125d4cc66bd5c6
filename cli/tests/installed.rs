//! `vmprobe` as an installed program: completions, manual pages, the user's configuration, exit codes, and Jobs of
//! Kubernetes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

mod fake;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use deployment::{Tools, deploy, faults_of_manual};
use fake::Fake;
use fake::command::vmprobe as with_server;
use row_report::proves;
use serde_json::Value;

/// The list of exit codes for people.
const DOCUMENTED: &str = include_str!("../../docs/exit-codes.md");

fn vmprobe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmprobe"));
    command.args(args).env_remove("VMPROBE_SERVER");
    command.env("VMPROBE_CONFIG", "/dev/null");
    command
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("installed-{name}"));
    let _there_may_be_none = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn output(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the subcommands that the help of a command shows.
fn subcommands(command: &[&str]) -> Vec<String> {
    let help = output(&vmprobe(&[command, &["--help"]].concat()).output().unwrap());
    let (_, list) = help.split_once("\nCommands:\n").unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn each_command_has_a_manual_page_without_a_fault() {
    let name = "each_command_has_a_manual_page_without_a_fault";
    proves(&["SV08"], name, || format!("{} pages", manual_pages()));
}

fn manual_pages() -> usize {
    let folder = folder("manual");
    let written = vmprobe(&["manual"]).arg(&folder).output().unwrap();
    assert_eq!(written.status.code(), Some(0), "{}", errors(&written));
    let mut expected = BTreeSet::from(["vmprobe.1".to_owned()]);
    for command in subcommands(&[]) {
        expected.insert(format!("vmprobe-{command}.1"));
        let below = subcommands(&[&command]).into_iter();
        expected.extend(below.map(|below| format!("vmprobe-{command}-{below}.1")));
    }
    assert!(expected.len() > 30, "{expected:?}");
    let pages: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    let names = pages
        .iter()
        .map(|page| page.file_name().unwrap().to_str().unwrap().to_owned());
    assert_eq!(names.collect::<BTreeSet<_>>(), expected);
    let page = fs::read_to_string(folder.join("vmprobe-trace.1")).unwrap();
    assert!(
        page.contains("EXAMPLES") && page.contains("VMPROBE_SERVER"),
        "{page}"
    );
    let page = fs::read_to_string(folder.join("vmprobe.1")).unwrap();
    assert!(page.contains("EXIT STATUS"), "{page}");

    assert_eq!(faults_of_manual(&pages).unwrap(), [""; 0]);
    pages.len()
}

#[test]
fn each_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&vmprobe(&["completions", shell]).output().unwrap());
        for command in subcommands(&[]) {
            assert!(script.contains(&command), "{command} for {shell}");
        }
    }
    let script = folder("completions").join("vmprobe.bash");
    fs::write(
        &script,
        vmprobe(&["completions", "bash"]).output().unwrap().stdout,
    )
    .unwrap();
    let ask = "source \"$1\"; COMP_WORDS=(vmprobe probe bl); COMP_CWORD=2; \
               _vmprobe vmprobe bl probe; echo ${COMPREPLY[*]}";
    let asked = Command::new("bash")
        .args(["-c", ask, "-"])
        .arg(&script)
        .output()
        .unwrap();
    assert_eq!(output(&asked), "blacklist\n", "{}", errors(&asked));
}

#[tokio::test]
async fn a_server_of_the_configuration_is_called_by_its_name() {
    let (_fake, server) = Fake::with_guest().await;
    let file = folder("servers").join("config.toml");
    fs::write(
        &file,
        format!("server = 'lab'\n[servers.lab]\naddress = 'http://{server}'\n"),
    )
    .unwrap();
    let list = |args: &'static [&str], variable: Option<&'static str>| {
        let mut command = vmprobe(&[&["vm", "list"], args].concat());
        command.env("VMPROBE_CONFIG", &file);
        command.envs(variable.map(|server| ("VMPROBE_SERVER", server)));
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    for (args, variable) in [
        (&[][..], None),
        (&["--server", "lab"], Some("other")),
        (&[], Some("lab")),
    ] {
        let listed = list(args, variable).await.unwrap();
        assert!(
            output(&listed).starts_with("guest "),
            "{args:?}: {}",
            errors(&listed)
        );
    }
    let unknown = list(&["--server", "ftp://other"], None).await.unwrap();
    assert!(
        errors(&unknown).contains("`ftp://other` is not a server address"),
        "{}",
        errors(&unknown)
    );

    fs::write(&file, "[servers.lab]\nadress = 'x'\n").unwrap();
    let wrong = list(&[], None).await.unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(errors(&wrong).contains("line 2"), "{}", errors(&wrong));
}

#[test]
fn exit_codes_are_documented_as_the_help_has_them() {
    let help = output(&vmprobe(&["--help"]).output().unwrap());
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    assert!(DOCUMENTED.contains(codes.trim_end()), "{codes}");
}

#[tokio::test]
async fn the_exit_codes_are_those_that_are_documented() {
    let (_fake, server) = Fake::with_guest().await;
    for (code, args) in [
        (0, &["vm", "list"][..]),
        (0, &["completions", "bash"]),
        (1, &["probe", "enable", "nobody"]),
        (2, &["vm", "info", "--no-such-option"]),
        (2, &["probe", "add", "vfs_read+"]),
        (
            125,
            &[
                "run",
                "--kernel",
                "/nonexistent",
                "--events",
                "/nonexistent/events",
            ],
        ),
        (125, &["vm", "wait", "--server", "ftp://nowhere"]),
    ] {
        let done = with_server(&server, args).await;
        assert_eq!(done.code, Some(code), "{args:?}: {}", done.errors);
    }
}

#[tokio::test]
async fn what_commands_find_is_text_or_json() {
    let (fake, server) = Fake::with_guest().await;
    let add = with_server(&server, &["probe", "add", "vfs_read", "-o", "json"]).await;
    assert_eq!(fake.calls(), ["register"]);
    assert_eq!(add.code, Some(0), "{}", add.errors);
    for args in [
        &["vm", "list"][..],
        &["vm", "info"],
        &["probe", "list"],
        &["probe", "disable", "1"],
        &["probe", "enable", "1"],
        &["probe", "wait"],
        &["symbols", "vfs_*"],
        &["list", "vfs_*"],
        &["top", "--once", "--interval", "0.01"],
        &["probe", "rm", "--all"],
    ] {
        for json in [&["-o", "json"][..], &["--output=json"], &["--json"]] {
            let done = with_server(&server, &[args, json].concat()).await;
            assert_eq!(done.code, Some(0), "{args:?}: {}", done.errors);
            for line in done.lines() {
                assert!(
                    serde_json::from_str::<Value>(line).unwrap().is_object(),
                    "{args:?}: {line}"
                );
            }
            if args[1] == "rm" {
                break;
            }
            assert!(!done.lines().is_empty(), "{args:?}");
        }
    }
    with_server(&server, &["probe", "add", "vfs_read"]).await;
    let text = with_server(&server, &["probe", "list", "-o", "text"]).await;
    assert!(text.lines()[0].contains("vfs_read") || text.lines()[1].contains("vfs_read"));
    let both = with_server(&server, &["probe", "list", "--json", "-o", "text"]).await;
    assert_eq!(both.code, Some(2));
}

const MATRIX: &str = "\
[defaults]
root = 'root'
memory = 256
[kernels.a]
kernel = 'a/bzImage'
[kernels.b]
kernel = 'b/bzImage'
memory = 1024
[tests.one]
run = 'true'
[tests.two]
run = 'false'
vcpus = 4
only = ['b']
";

#[test]
fn each_job_of_a_matrix_is_an_index_of_a_job_of_kubernetes() {
    let matrix = folder("kubernetes").join("matrix.toml");
    fs::write(&matrix, MATRIX).unwrap();
    let args = [
        "--image=i:1",
        "--files=kernels",
        "--results=reports",
        "-p2",
        "--kvm-group=104",
    ];
    let made = vmprobe(&["ci-job"])
        .arg(&matrix)
        .args(args)
        .output()
        .unwrap();
    assert_eq!(made.status.code(), Some(0), "{}", errors(&made));
    let text = output(&made);
    let mut documents = text.strip_prefix("---\n").unwrap().split("---\n");
    let [config, job] = [(); 2].map(|()| documents.next().unwrap());
    for part in [
        "kind: ConfigMap",
        "0 a/one",
        "1 b/one",
        "2 b/two",
        "memory = 1024",
    ] {
        assert!(config.contains(part), "{part}: {config}");
    }
    for part in [
        "kind: Job",
        "completionMode: Indexed",
        "completions: 3",
        "parallelism: 2",
        "claimName: kernels",
        "claimName: reports",
        "memory: 1536Mi",
        "devices.kubevirt.io/kvm",
        "$(JOB_COMPLETION_INDEX)",
        "- 104",
    ] {
        assert!(job.contains(part), "{part}: {job}");
    }
    let file = matrix.with_file_name("job.yaml");
    fs::write(&file, &text).unwrap();
    let tools = Tools::ensure().unwrap();
    let mut yamllint = tools.module("yamllint");
    yamllint
        .arg("--strict")
        .arg("-c")
        .arg(deploy("kubernetes/.yamllint"));
    let mut validate = tools.module("kubernetes_validate");
    for tool in [&mut yamllint, validate.arg("--strict")] {
        let told = tool.arg(&file).output().unwrap();
        assert!(told.status.success(), "{}{}", output(&told), errors(&told));
    }
    fs::write(&matrix, "[kernels.a]\nkernl = 'x'").unwrap();
    let wrong = vmprobe(&["ci-job", "--image=i"])
        .arg(&matrix)
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(errors(&wrong).contains("line 2"), "{}", errors(&wrong));
}

#[test]
fn one_job_of_a_matrix_is_run_by_its_number() {
    let matrix = folder("index").join("matrix.toml");
    fs::write(&matrix, MATRIX).unwrap();
    let run = |index: &str| {
        let mut command = vmprobe(&["ci", "--paths-from=/nonexistent", "--job-index", index]);
        command.arg(&matrix).output().unwrap()
    };
    let told = |done: &Output| output(done) + &errors(done);
    let first = run("0");
    assert_eq!(first.status.code(), Some(1), "{}", told(&first));
    let text = told(&first);
    assert!(text.contains("a/one") && !text.contains("b/"), "{text}");
    assert!(text.contains("/nonexistent/root"), "{text}");
    let last = run("3");
    assert_eq!(last.status.code(), Some(2));
    assert!(
        errors(&last).contains("there is no job 3: there are 3"),
        "{}",
        errors(&last)
    );
}

#[test]
fn certificates_that_were_made_are_told_as_json() {
    let folder = folder("certificates");
    let dir = folder.join("certs");
    let dir = dir.to_str().unwrap();
    let made = |args: &[&str]| -> Vec<Value> {
        let done = vmprobe(args).output().unwrap();
        assert!(done.status.success(), "{}", errors(&done));
        let lines = output(&done);
        let lines = lines.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let all = made(&[
        "certs",
        "init",
        "--dir",
        dir,
        "--client",
        "alice=control",
        "-o",
        "json",
    ]);
    let names: Vec<_> = all.iter().map(|made| &made["client"]).collect();
    assert_eq!(names, [&Value::Null, &Value::from("alice")]);
    let one_more = made(&["certs", "client", "--dir", dir, "bob", "--json"]);
    assert_eq!(one_more[0]["role"], "observe");
    for made in all.iter().chain(&one_more) {
        for file in ["certificate", "key", "ca"] {
            let path = made[file].as_str().unwrap();
            assert!(fs::exists(path).unwrap(), "{path}");
        }
    }
}
