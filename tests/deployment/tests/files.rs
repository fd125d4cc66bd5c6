//! The files in `deploy/`, checked by the tools that they are for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use deployment::{Tools, deploy};
use row_report::proves;

/// The highest exposure that `systemd-analyze security` may report for the service, in tenths: 20 is well inside its
/// "ok", below "medium".
const MOST_EXPOSURE: u32 = 20;
/// Kinds of objects that Kubernetes itself doesn't have.
const OTHERS: [&str; 2] = ["certificates.yaml", "kustomization.yaml"];

/// Runs a tool, which must succeed. Returns its output.
fn content(command: &mut Command) -> String {
    let output = command
        .output()
        .expect("a tool that deploy/setup.sh installs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

fn manifests() -> Vec<PathBuf> {
    let entries = fs::read_dir(deploy("kubernetes")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == "yaml"));
    files.sort();
    files
}

#[test]
fn the_service_is_exposed_less_than_2_of_10() {
    proves(
        &["SV09"],
        "the_service_is_exposed_less_than_2_of_10",
        || {
            let unit = deploy("systemd/vmprobed.service");
            let mut analyze = Command::new("systemd-analyze");
            analyze.args(["security", "--no-pager", "--offline=true"]);
            let told = content(
                analyze
                    .arg(format!("--threshold={MOST_EXPOSURE}"))
                    .arg(&unit),
            );
            let last = told.lines().rfind(|line| line.contains("exposure level"));
            last.unwrap().trim_start_matches(['→', ' ']).to_owned()
        },
    );
}

#[test]
fn the_service_s_user_is_made_by_systemd() {
    let mut sysusers = Command::new("systemd-sysusers");
    let told = content(
        sysusers
            .args(["--dry-run", "--root=/"])
            .arg(deploy("systemd/vmprobe.sysusers.conf")),
    );
    assert!(!told.contains("gnoring"), "{told}");
}

#[test]
fn the_dockerfile_is_without_a_fault() {
    proves(&["SV09"], "the_dockerfile_is_without_a_fault", || {
        let mut hadolint = Tools::ensure().unwrap().program("hadolint");
        content(
            hadolint
                .arg("--failure-threshold=style")
                .arg(deploy("Dockerfile")),
        )
    });
}

#[test]
fn manifests_are_what_kubernetes_takes() {
    proves(&["SV09"], "manifests_are_what_kubernetes_takes", || {
        let tools = Tools::ensure().unwrap();
        let files = manifests();
        let mut yamllint = tools.module("yamllint");
        yamllint
            .arg("--strict")
            .arg("-c")
            .arg(deploy("kubernetes/.yamllint"));
        content(yamllint.args(&files));
        let is_other = |file: &PathBuf| OTHERS.iter().any(|other| file.ends_with(other));
        let own: Vec<_> = files.iter().filter(|file| !is_other(file)).collect();
        let told = content(
            tools
                .module("kubernetes_validate")
                .arg("--strict")
                .args(&own),
        );
        for kind in [
            "namespace/",
            "configmap/",
            "daemonset/",
            "service/",
            "networkpolicy/",
        ] {
            assert!(told.contains(kind), "{kind}: {told}");
        }
        format!("{} files", files.len())
    });
}

#[test]
fn the_tools_find_faults() {
    let tools = Tools::ensure().unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (docker, object) = (folder.join("Dockerfile"), folder.join("object.yaml"));
    fs::write(&docker, "FROM debian\nRUN cd /tmp\n").unwrap();
    fs::write(
        &object,
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  nam: x\n",
    )
    .unwrap();
    let fails = |command: &mut Command| !command.output().unwrap().status.success();
    assert!(fails(
        tools
            .program("hadolint")
            .arg("--failure-threshold=style")
            .arg(&docker)
    ));
    assert!(fails(
        tools
            .module("kubernetes_validate")
            .arg("--strict")
            .arg(&object)
    ));
    assert!(fails(tools.module("yamllint").arg("--strict").arg(&docker)));
}

#[test]
fn pods_have_what_the_strictest_standard_wants() {
    // https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    let pod = fs::read_to_string(deploy("kubernetes/daemonset.yaml")).unwrap();
    for line in [
        "runAsNonRoot: true",
        "type: RuntimeDefault",
        "allowPrivilegeEscalation: false",
        "readOnlyRootFilesystem: true",
        "drop: [\"ALL\"]",
        "automountServiceAccountToken: false",
    ] {
        assert!(pod.contains(line), "{line}");
    }
    assert!(!pod.contains("hostPath") && !pod.contains("privileged: true"));
}

#[test]
fn shell_scripts_are_without_a_fault() {
    let scripts = [deploy("setup.sh"), deploy("debian/postrm")];
    content(Command::new("shellcheck").args(scripts));
}
