//! Jobs of `vmprobe ci`: what passes, what fails and why, and what the reports say.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::guest::files;
use super::root::unpack_modules;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "jobs_of_ci_on_6_12_are_judged_by_all_that_they_do",
        ids: &["VM06", "VM12"],
        needs: Needs::Linux,
        run: |cx| jobs(cx, files::BZIMAGE_6_12, "6.12."),
    },
    Test {
        name: "jobs_of_ci_on_6_1_are_judged_by_all_that_they_do",
        ids: &["VM06", "VM12"],
        needs: Needs::Linux,
        run: |cx| jobs(cx, files::BZIMAGE_6_1, "6.1."),
    },
    Test {
        name: "a_kernel_s_own_tests_and_its_faults_are_told_by_ci",
        ids: &["VM06", "VM12"],
        needs: Needs::Linux,
        run: faults,
    },
    Test {
        name: "a_job_of_ci_runs_on_a_disk_image_that_stays_as_it_is",
        ids: &["VM06", "VM12"],
        needs: Needs::Linux,
        run: image,
    },
];

/// Further names of the shell's program.
const NAMES: [&str; 7] = ["sh", "cat", "echo", "mkdir", "mount", "printf", "sleep"];
/// The jobs. The limit of `hangs` only bounds how long the test takes: its guest never ends.
const MATRIX: &str = r#"
[defaults]
root = "root"
modules = "modules"
memory = 256

[tests.passes]
run = "cat /etc/motd; cat /etc/motd; cat /etc/motd"
expect = ["3 p:read do_sys_openat2 name=$arg2:ustring if name == \"/etc/motd\"", "p vfs_read"]
expect-none = ["p vfs_rename if comm == \"cat\""]
max-latency = [{ probe = "r vfs_statx", time = "1h" }]
coverage = ["vfs_*=5%"]

[tests.fails]
run = "mkdir /tmp/folder; echo to no avail >&2; exit 3"
expect = ["100000 p vfs_mkdir"]
expect-none = ["p vfs_mkdir"]
max-latency = [{ probe = "r vfs_mkdir", time = "1ns" }]
coverage = ["vfs_*=100%"]

[tests.tells]
run = 'printf "TAP version 13\n1..3\nok 1 first\n# a word\nnot ok 2 second\nok 3 third # SKIP no need\n"'

[tests.panics]
run = "echo c > /proc/sysrq-trigger"

[tests.hangs]
run = "sleep 1000000"
timeout = "25s"
vcpus = 2
probe = ["p:early start_kernel"]
"#;

/// The jobs of a kernel with `KUnit`, KASAN and lockdep, which has faults on demand (drivers/misc/lkdtm). Those that
/// hang end when a watchdog has noticed, however long that takes.
const FAULTS: &str = r#"
[defaults]
memory = 256
timeout = "2m"

[tests.kunit]
append = ["kunit.enable=1", "kunit_shutdown=poweroff"]

[tests.oops]
root = "root"
run = "mount -t debugfs none /sys/kernel/debug; echo EXCEPTION > /sys/kernel/debug/provoke-crash/DIRECT"

[tests.kasan]
root = "root"
run = "mount -t debugfs none /sys/kernel/debug; echo WRITE_AFTER_FREE > /sys/kernel/debug/provoke-crash/DIRECT"

[tests.allowed]
root = "root"
run = "mount -t debugfs none /sys/kernel/debug; echo WARNING > /sys/kernel/debug/provoke-crash/DIRECT"
allow = ["warning"]

[tests.lock]
root = "root"
run = "mount -t debugfs none /sys/kernel/debug; echo SPINLOCKUP > /sys/kernel/debug/provoke-crash/DIRECT"
append = ["softlockup_panic=1"]

[tests.hung]
root = "root"
run = "mount -t debugfs none /sys/kernel/debug; echo HUNG_TASK > /sys/kernel/debug/provoke-crash/DIRECT"
append = ["hung_task_panic=1"]
"#;

/// Runs `vmprobe ci` in a folder.
fn ci(cx: &Context, folder: &Path, arguments: &[&str]) -> Result<Output, Failure> {
    let output = Command::new(cx.program("vmprobe"))
        .arg("ci")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    output.map_err(Failure::io("run vmprobe ci"))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(Failure::io("read what vmprobe ci has written"))
}

/// A root folder with a shell.
pub(super) fn make_root(cx: &Context, root: &Path) -> std::io::Result<()> {
    let bin = root.join("bin");
    for name in ["bin", "etc"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy(cx.file("busybox"), bin.join("busybox"))?;
    for name in NAMES {
        symlink("busybox", bin.join(name))?;
    }
    fs::write(root.join("etc/motd"), "of the host\n")
}

/// The only run of a job in a report.
fn attempt<'r>(report: &'r Value, job: &str) -> Result<&'r Value, Failure> {
    let jobs = report["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let found = jobs.iter().find(|it| it["name"] == job);
    let found = found.ok_or_else(|| wrong!("no job {job} in {report}"))?;
    check_eq!(
        found["attempts"].as_array().map(Vec::len),
        Some(1),
        "runs of {job}"
    );
    Ok(&found["attempts"][0])
}

/// The checks of a run: their names, whether they passed, and what was found.
fn checks(attempt: &Value) -> Vec<(String, bool, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = attempt["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let check = |it: &Value| {
        let passed = it["passed"].as_bool().unwrap_or_default();
        (text(&it["name"]), passed, text(&it["detail"]))
    };
    all.iter().map(check).collect()
}

/// The check whose name begins with `name`.
fn check_of(attempt: &Value, name: &str) -> Result<(bool, String), Failure> {
    let all = checks(attempt);
    let found = all.iter().find(|(it, ..)| it.starts_with(name));
    let found = found.ok_or_else(|| wrong!("no check {name} among {all:?}"))?;
    Ok((found.1, found.2.clone()))
}

/// Runs the folder's matrix on a kernel. Some of its jobs fail. Returns what it has printed, and its report.
fn matrix(cx: &Context, folder: &Path, kernel: &str) -> Result<(String, Value), Failure> {
    let arguments = [
        "matrix.toml",
        "--kernel",
        kernel,
        "--jobs",
        "2",
        "--json",
        "report.json",
        "--junit",
        "report.xml",
        "--artifacts",
        "kept",
    ];
    let output = ci(cx, folder, &arguments)?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    check_eq!(output.status.code(), Some(1), "exit code: {told}{errors}");
    let report = serde_json::from_str(&read(&folder.join("report.json"))?);
    let report = report.map_err(|error| wrong!("the report is no JSON: {error}"))?;
    Ok((told, report))
}

fn jobs(cx: &Context, kernel: &'static str, release: &str) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let at = folder.path();
    let made = make_root(cx, &at.join("root"))
        .and_then(|()| unpack_modules(cx, release, &at.join("modules")))
        .and_then(|()| fs::write(at.join("matrix.toml"), MATRIX));
    made.map_err(Failure::io("make a root folder"))?;
    let kernel = format!("k={}", cx.kernel(kernel));
    let (told, report) = matrix(cx, at, &kernel)?;
    check_eq!(
        told.lines().last(),
        Some("1 passed, 4 failed"),
        "the last line of {told}"
    );

    let passes = attempt(&report, "k/passes")?;
    for (name, passed, detail) in checks(passes) {
        check!(passed, "{name}: {detail}");
    }
    let opened = check_of(passes, "expect `3 p:read")?.1;
    check_eq!(opened, "hit 3 times", "what is told of the file's opens");
    check_eq!(
        passes["output"],
        serde_json::json!(["of the host", "of the host", "of the host"]),
        "the command's output"
    );
    let coverage = &passes["coverage"][0];
    let called = coverage["hits"]["vfs_read"].as_u64();
    check!(called > Some(0), "calls of vfs_read: {coverage}");
    check!(
        told.contains("k/passes | of the host"),
        "the output isn't shown in {told}"
    );

    let fails = attempt(&report, "k/fails")?;
    let mut failed = checks(fails);
    failed.retain(|(_, passed, _)| !passed);
    let failed: Vec<String> = failed
        .into_iter()
        .map(|(name, _, why)| format!("{name}: {why}"))
        .collect();
    let expected = [
        "end: exit code 3",
        "expect `100000 p vfs_mkdir`: hit ",
        "expect-none `p vfs_mkdir`: hit ",
        "max-latency `r vfs_mkdir` 1ns: ",
        "coverage `vfs_*=100%`: ",
    ];
    check_eq!(failed.len(), expected.len(), "what failed: {failed:?}");
    for (found, begins) in failed.iter().zip(expected) {
        check!(found.starts_with(begins), "{found}");
    }
    check_eq!(fails["output"][0], "to no avail", "what fails has printed");

    let tells = attempt(&report, "k/tells")?;
    let outcomes: Vec<_> = tells["tests"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(|test| test["outcome"].as_str().unwrap_or_default())
        .collect();
    check_eq!(outcomes, ["pass", "fail", "skip"], "the tests: {tells}");

    let panics = attempt(&report, "k/panics")?;
    let reports = panics["reports"].as_array().map_or(&[][..], Vec::as_slice);
    let panic = reports.iter().find(|it| it["kind"] == "panic");
    let panic = panic.ok_or_else(|| wrong!("no panic in {reports:?}"))?;
    let title = "Kernel panic - not syncing: sysrq triggered crash";
    check_eq!(panic["title"], title, "the panic's title");
    let stack = panic["stack"].to_string();
    check!(
        stack.contains("sysrq_handle_crash+0x"),
        "its stack: {stack}"
    );
    check!(!check_of(panics, "end")?.0, "a guest that panics passes");

    let hangs = attempt(&report, "k/hangs")?;
    check_eq!(hangs["end"]["kind"], "timeout", "the end of what hangs");
    let vcpus = hangs["vcpus"].as_array().map_or(&[][..], Vec::as_slice);
    check_eq!(vcpus.len(), 2, "vCPUs of what hangs: {hangs}");
    for vcpu in vcpus {
        let stack = vcpu["stack"].as_array().map_or(&[][..], Vec::as_slice);
        let first = stack.first().and_then(Value::as_str).unwrap_or_default();
        check!(first.contains("+0x"), "where a vCPU stands: {vcpu}");
    }
    let last = hangs["last_events"].to_string();
    check!(
        last.contains("early: (start_kernel+"),
        "the last events: {last}"
    );

    let junit = read(&at.join("report.xml"))?;
    for part in [
        r#"<testsuite name="k/fails""#,
        r#"<failure message="exit code 3"/>"#,
        r#"<testcase name="second" classname="k/tells""#,
        "sysrq_handle_crash",
    ] {
        check!(junit.contains(part), "{part} isn't in {junit}");
    }
    let events = read(&at.join("kept/k-hangs/events.txt"))?;
    check!(events.contains("early: (start_kernel+"), "events: {events}");
    let console = read(&at.join("kept/k-panics/console.txt"))?;
    check!(
        console.contains(title),
        "no panic on the console that is kept"
    );
    pass()
}

/// The reports of a run, as kind and title.
fn kinds(attempt: &Value) -> Vec<(&str, &str)> {
    let reports = attempt["reports"].as_array().map_or(&[][..], Vec::as_slice);
    reports
        .iter()
        .map(|it| {
            (
                it["kind"].as_str().unwrap_or_default(),
                it["title"].as_str().unwrap_or_default(),
            )
        })
        .collect()
}

fn faults(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let at = folder.path();
    let made =
        make_root(cx, &at.join("root")).and_then(|()| fs::write(at.join("matrix.toml"), FAULTS));
    made.map_err(Failure::io("make a root folder"))?;
    let kernel = format!("t={}", cx.file("test-kernel"));
    let (told, report) = matrix(cx, at, &kernel)?;

    let kunit = attempt(&report, "t/kunit")?;
    check_eq!(kunit["passed"], true, "whether KUnit passes: {told}");
    let tests = kunit["tests"].as_array().map_or(&[][..], Vec::as_slice);
    let outcome = |path: [&str; 2]| {
        let found = tests
            .iter()
            .find(|test| test["path"] == serde_json::json!(path));
        found
            .map(|test| test["outcome"].clone())
            .unwrap_or_default()
    };
    check_eq!(
        outcome(["example", "example_simple_test"]),
        "pass",
        "a test that passes"
    );
    check_eq!(
        outcome(["example", "example_skip_test"]),
        "skip",
        "a test that is skipped"
    );
    check!(tests.len() > 100, "only {} tests", tests.len());
    let junit = read(&at.join("report.xml"))?;
    let case = r#"<testcase name="example_simple_test" classname="t/kunit.example""#;
    check!(junit.contains(case), "{case} isn't in JUnit's report");

    for (job, kind, function) in [
        ("t/oops", "oops", "lkdtm_EXCEPTION"),
        ("t/kasan", "kasan", "lkdtm_WRITE_AFTER_FREE"),
        ("t/allowed", "warning", "lkdtm_WARNING"),
        ("t/lock", "lockdep", "lkdtm_do_action"),
        ("t/hung", "hung-task", "lkdtm_HUNG_TASK"),
    ] {
        let it = attempt(&report, job)?;
        let reports = it["reports"].as_array().map_or(&[][..], Vec::as_slice);
        let found = reports.iter().find(|report| report["kind"] == kind);
        let found = found.ok_or_else(|| wrong!("no {kind} in {job}: {:?}", kinds(it)))?;
        let lines = found["lines"].to_string();
        check!(
            lines.contains(function),
            "{job} doesn't tell of {function}: {lines}"
        );
        let passed = job == "t/allowed";
        check_eq!(it["passed"], passed, "whether {job} passes: {told}");
    }
    pass()
}

fn image(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let at = folder.path();
    let disk = at.join("root.img");
    let made = fs::copy(cx.file("root.img"), &disk)
        .and_then(|_| unpack_modules(cx, "6.12.", &at.join("modules")));
    made.map_err(Failure::io("make a disk"))?;
    let before = fs::read(&disk).map_err(Failure::io("read the disk"))?;
    let kernel = cx.kernel(files::BZIMAGE_6_12);
    let arguments = [
        "--kernel",
        &kernel,
        "--root",
        "root.img",
        "--modules",
        "modules",
        "--memory",
        "256",
        "--run",
        "echo of the guest > /etc/motd && cat /etc/motd",
    ];
    let output = ci(cx, at, &arguments)?;
    let told = String::from_utf8_lossy(&output.stdout);
    check_eq!(output.status.code(), Some(0), "exit code: {told}");
    check!(
        told.lines().any(|line| line == "of the guest"),
        "the output isn't shown in {told}"
    );
    let after = fs::read(&disk).map_err(Failure::io("read the disk"))?;
    check!(before == after, "the disk has been changed");

    let mut crashing = arguments;
    crashing[9] = "echo c > /proc/sysrq-trigger";
    let output = ci(cx, at, &crashing)?;
    let told = String::from_utf8_lossy(&output.stdout);
    check_eq!(output.status.code(), Some(1), "exit code: {told}");
    let panic = "kernel: panic: Kernel panic - not syncing: sysrq triggered crash";
    check!(told.contains(panic), "no panic in {told}");
    check!(
        told.contains("    sysrq_handle_crash+0x"),
        "no stack in {told}"
    );

    let lacking = [
        "--kernel",
        &kernel,
        "--root",
        "no-such-root",
        "--run",
        "true",
    ];
    let output = ci(cx, at, &lacking)?;
    let told = String::from_utf8_lossy(&output.stdout);
    check_eq!(output.status.code(), Some(1), "exit code: {told}");
    check!(told.contains("no-such-root isn't there"), "{told}");

    let output = ci(cx, at, &[&lacking[..], &["-o", "json"]].concat())?;
    let told = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&told).map_err(|error| wrong!("{error} in {told}"))?;
    check_eq!(report["failed"], 1, "failed jobs in {told}");
    let beside = String::from_utf8_lossy(&output.stderr);
    check!(beside.contains("no-such-root isn't there"), "{beside}");
    pass()
}
