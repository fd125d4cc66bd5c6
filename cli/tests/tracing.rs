//! The commands that show or record what probes see, against a server that keeps to the contract.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

mod fake;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fake::Fake;
use fake::command::{Done, vmprobe};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::Command;

const OPEN: &str = "p:open vfs_read dfd=$arg1 name=+u0($arg2):ustring";

/// What a trace of probes of its own asks the server for.
const TRACE: [&str; 4] = ["register", "subscribe", "enable", "unregister"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn assert_done(done: &Done, output: &str, errors: &str) {
    assert_eq!(done.output, output, "{}", done.errors);
    assert_eq!(done.errors, errors);
    assert_eq!(done.code, Some(0));
}

#[tokio::test]
async fn a_definition_is_there_for_the_time_of_its_trace() {
    let (fake, server) = Fake::with_guest().await;
    let line = "             cat-77      [000] .....     0.001000: open: (vfs_read+0x0/0x800) \
                dfd=42 name=\"/etc/passwd\"\n";
    let totals = "vmprobe: 1 event, 3 lost\nvmprobe: open: 1 hit, 0 missed\n";
    let done = vmprobe(&server, &["trace", OPEN, "--count", "1"]).await;
    assert_done(&done, &format!("[LOST 3 EVENTS]\n{line}"), totals);
    assert_eq!(fake.calls(), TRACE);
    let done = vmprobe(&server, &["probe", "list"]).await;
    assert_done(&done, "", "");

    let done = vmprobe(&server, &["trace", OPEN, "--count", "1", "--header"]).await;
    assert!(
        done.output.starts_with("# tracer: nop\n#\n"),
        "{}",
        done.output
    );
    assert!(done.output.ends_with(line), "{}", done.output);
}

#[tokio::test]
async fn a_trace_has_the_one_json_of_all_formats() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["trace", OPEN, "--count", "1", "--json"]).await;
    assert_eq!(done.lines()[0], "{\"lost\":3}");
    let event: Value = serde_json::from_str(done.lines()[1]).unwrap();
    assert_eq!(event["probe"], "open");
    assert_eq!(event["context"]["comm"], "cat");
    assert_eq!(event["arguments"]["dfd"], 42);
    assert_eq!(event["arguments"]["name"], "/etc/passwd");
    assert_eq!(event["place"]["symbol"], "vfs_read+0x0");
}

#[tokio::test]
async fn registered_probes_are_traced_by_name_and_stay() {
    let (fake, server) = Fake::with_guest().await;
    vmprobe(&server, &["probe", "add", "a=vfs_read", "b=vfs_write"]).await;
    for choice in [
        &["trace", "b"][..],
        &["trace", "--probe", "b"],
        &["trace", "2"],
    ] {
        let done = vmprobe(&server, &[choice, &["--count", "1"]].concat()).await;
        assert!(done.lines()[1].contains(": b: (vfs_write+0x0/0x800) rdi="));
        assert_eq!(
            done.errors,
            "vmprobe: 1 event, 3 lost\nvmprobe: b: 1 hit, 0 missed\n"
        );
    }
    assert_eq!(
        fake.calls(),
        ["register", "subscribe", "subscribe", "subscribe"]
    );

    let done = vmprobe(&server, &["trace", "nobody"]).await;
    assert_eq!(done.code, Some(1));
    assert!(
        done.errors
            .starts_with("vmprobe: no probe is called `nobody`")
    );
}

#[tokio::test]
async fn a_trace_takes_definitions_from_a_file() {
    let (_fake, server) = Fake::with_guest().await;
    let path = file("definitions.txt");
    let path = path.to_str().unwrap();
    fs::write(
        path,
        "# two of them\np vfs_read count=count # the size\n\nr:done vfs_write\n",
    )
    .unwrap();
    let done = vmprobe(&server, &["trace", "-f", path, "--count", "2"]).await;
    assert!(done.lines()[1].contains(": p_vfs_read_0: (vfs_read+0x0/0x800) count=42"));
    assert!(done.lines()[2].contains(": done: (vfs_read+0x10/0x800 <- vfs_write) ret="));

    fs::write(path, "p vfs_read\np vfs_read +\n").unwrap();
    let done = vmprobe(&server, &["trace", "-f", path]).await;
    assert_eq!(done.code, Some(2), "{}", done.errors);
    assert!(
        done.errors.contains(&format!("{path}:2:")),
        "{}",
        done.errors
    );
    assert!(
        done.errors.contains("2 | p vfs_read +\n"),
        "{}",
        done.errors
    );
    fs::write(path, "p:open vfs_read\np:b vfs_write\n-:open\n").unwrap();
    let done = vmprobe(&server, &["trace", "-f", path, "--count", "1"]).await;
    assert!(done.lines()[1].contains(": b: "), "{}", done.output);
    fs::write(path, "-:open\n").unwrap();
    let done = vmprobe(&server, &["trace", "-f", path]).await;
    assert_eq!(done.code, Some(2), "{}", done.errors);
}

#[tokio::test]
async fn a_definition_that_only_counts_is_told_of() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["trace", "p vfs_read count", "--count", "1"]).await;
    let told = "vmprobe: `p vfs_read count` counts hits and has no events: for a parameter called count, \
                write count=count\n";
    assert!(done.errors.starts_with(told), "{}", done.errors);
}

#[tokio::test]
async fn an_argument_that_the_guest_does_not_have_is_pointed_at() {
    let (fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["trace", "p vfs_read dfd nobody"]).await;
    let expected = "\
vmprobe: error: vfs_read has no parameter nobody
  |
1 | p vfs_read dfd nobody
  |                ^
";
    assert_eq!(done.errors, expected);
    assert_eq!(done.code, Some(2));
    assert_eq!(fake.calls(), ["register"]);
}

#[tokio::test]
async fn ctrl_c_ends_a_trace_with_totals_and_without_its_probes() {
    let (fake, server) = Fake::with_guest().await;
    let child = Command::new(env!("CARGO_BIN_EXE_vmprobe"))
        .args(["trace", OPEN])
        .env("VMPROBE_SERVER", &server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    while !fake.calls().contains(&"enable") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let id = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
    let done = child.wait_with_output().await.unwrap();
    assert_eq!(done.status.code(), Some(0));
    // Whether the signal comes before or after the event, it is seen.
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(
        errors,
        "vmprobe: 1 event, 3 lost\nvmprobe: open: 1 hit, 0 missed\n"
    );
    assert_eq!(String::from_utf8(done.stdout).unwrap().lines().count(), 2);
    assert_eq!(fake.calls(), TRACE);
}

#[tokio::test]
async fn a_trace_ends_with_its_guest_or_its_time() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["trace", OPEN, "--seconds", "0.05"]).await;
    assert_eq!(done.lines().len(), 2);
    assert_eq!(
        done.errors,
        "vmprobe: 1 event, 3 lost\nvmprobe: open: 1 hit, 0 missed\n"
    );
    vmprobe(&server, &["vm", "kill"]).await;
    let done = vmprobe(&server, &["trace", OPEN]).await;
    let first = "vmprobe: 1 event, 3 lost; the guest ended: killed (exit 6)\n";
    assert!(done.errors.starts_with(first), "{}", done.errors);
}

#[tokio::test]
async fn a_pattern_stands_for_many_probes_that_all_are_enabled_and_removed() {
    let (fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["trace", "p vfs_*", "--count", "1"]).await;
    assert!(done.lines()[1].contains(": p.vfs_write: (vfs_write+0x0/0x800) rdi="));
    let totals = "vmprobe: 1 event, 3 lost\nvmprobe: p.vfs_write: 1 hit, 0 missed\n";
    assert_eq!(done.errors, totals);
    assert_eq!(fake.calls(), TRACE);
    let done = vmprobe(&server, &["latency", "vfs_*", "--count", "1"]).await;
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert_eq!(vmprobe(&server, &["probe", "list"]).await.output, "");
    let done = vmprobe(&server, &["trace", "p nothing_*"]).await;
    assert_eq!(done.code, Some(1));
    assert_eq!(done.errors, "vmprobe: nothing matches\n");
}

#[tokio::test]
async fn a_recording_has_the_format_of_its_ending() {
    let (fake, server) = Fake::with_guest().await;
    for (ending, start) in [
        ("txt", &b"# tracer: nop\n"[..]),
        ("json", b"{\"lost\":3}\n{\"probe\":\"open\","),
        ("perfetto-trace", b"\n"),
        // trace-cmd's magic (trace.dat(5)).
        ("dat", b"\x17\x08\x44tracing6\0"),
        ("folded", b"cat;start_kernel;do_one_initcall;vfs_read 1\n"),
        ("svg", b"<?xml"),
    ] {
        let path = file(&format!("recording.{ending}"));
        let _ = fs::remove_file(&path);
        let path = path.to_str().unwrap();
        let done = vmprobe(&server, &["record", "-o", path, OPEN, "--count", "1"]).await;
        let totals = "vmprobe: 1 event, 3 lost\nvmprobe: open: 1 hit, 0 missed\n";
        assert_done(&done, "", &format!("{totals}vmprobe: written: {path}\n"));
        let content = fs::read(path).unwrap();
        assert!(content.starts_with(start), "{ending}: {content:?}");
    }
    assert_eq!(fake.calls().len(), 6 * TRACE.len());
}

#[tokio::test]
async fn a_recording_that_cannot_be_written_leaves_no_probe() {
    let (fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["record", "-o", "/nonexistent/x.txt", OPEN]).await;
    assert_eq!(done.code, Some(1));
    assert!(
        done.errors
            .starts_with("vmprobe: can't create /nonexistent/x.txt: No such file"),
        "{}",
        done.errors
    );
    assert_eq!(fake.calls(), ["register", "subscribe", "unregister"]);
}

#[tokio::test]
async fn the_most_frequent_stacks_are_shown() {
    let (_fake, server) = Fake::with_guest().await;
    let both = [
        "stack",
        "p:a vfs_read",
        "p:b vfs_write stack=3",
        "--count",
        "2",
    ];
    let done = vmprobe(&server, &both).await;
    let expected = "\
1 time, 50.0 %, in cat
 => vfs_read
 => do_one_initcall
 => start_kernel

1 time, 50.0 %, in cat
 => vfs_write
 => do_one_initcall
 => start_kernel
";
    let totals =
        "vmprobe: 2 events, 3 lost\nvmprobe: a: 1 hit, 0 missed\nvmprobe: b: 1 hit, 0 missed\n";
    assert_done(&done, expected, totals);

    vmprobe(&server, &["probe", "add", "plain=vfs_read"]).await;
    let done = vmprobe(&server, &["stack", "plain", "--count", "1"]).await;
    assert_eq!(done.output, "");
    assert!(
        done.errors.contains("none of these events has a stack"),
        "{}",
        done.errors
    );
}

#[tokio::test]
async fn a_flame_graph_has_the_functions_of_the_stacks() {
    let (_fake, server) = Fake::with_guest().await;
    let path = file("flame.svg");
    let flame = [
        "flame",
        "p:a vfs_read",
        "-o",
        path.to_str().unwrap(),
        "--count",
        "1",
    ];
    let done = vmprobe(&server, &flame).await;
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.contains("<title>do_one_initcall (1 events, 100.00%)</title>"));

    vmprobe(&server, &["probe", "add", "plain=vfs_read"]).await;
    let plain = [
        "flame",
        "plain",
        "-o",
        path.to_str().unwrap(),
        "--count",
        "1",
    ];
    let done = vmprobe(&server, &plain).await;
    assert_eq!(done.code, Some(1));
    assert!(
        done.errors.contains("needs events with a stack"),
        "{}",
        done.errors
    );
}

#[tokio::test]
async fn latencies_are_a_histogram_for_each_function() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(
        &server,
        &["latency", "vfs_read", "vfs_write", "--count", "2"],
    )
    .await;
    let one = " 262 us .. 524 us             1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n\
               1 call, shortest 500 us, average 500 us, longest 500 us\n";
    let totals = "vmprobe: 2 events, 3 lost\nvmprobe: r_vfs_read_0: 1 hit, 0 missed\n\
                  vmprobe: r_vfs_write_0: 1 hit, 0 missed\n";
    assert_done(
        &done,
        &format!("vfs_read:\n{one}\nvfs_write:\n{one}"),
        totals,
    );
}

#[tokio::test]
async fn top_prints_tables_where_there_is_no_terminal() {
    let (_fake, server) = Fake::with_guest().await;
    vmprobe(
        &server,
        &[
            "probe",
            "add",
            "a=vfs_read",
            "r:b vfs_write",
            "c=vfs_read nojump",
        ],
    )
    .await;
    let done = vmprobe(&server, &["top", "--once", "--interval", "0.2"]).await;
    assert_eq!((done.code, &*done.errors), (Some(0), ""));
    let rows: Vec<Vec<&str>> = done
        .lines()
        .iter()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let headings = "PROBE KIND HITS HITS/S MISSED EXITS/S JUMP LATENCY STATE";
    assert_eq!(rows[0].join(" "), headings);
    // The return probe's event came with the subscription, so its hit is new.
    assert_eq!((rows[1][0], rows[1][1], rows[1][2]), ("b", "r", "1"));
    assert_eq!(rows[1][4..], ["0", "0", "yes", "500.0µs", "armed"]);
    assert_eq!(rows[2], ["a", "p", "0", "0", "0", "0", "yes", "armed"]);
    assert_eq!(rows[3], ["c", "p", "0", "0", "0", "0", "no", "armed"]);

    vmprobe(&server, &["vm", "kill"]).await;
    let done = vmprobe(&server, &["top", "--interval", "0.01"]).await;
    assert_eq!(done.lines().len(), 4);
    assert_eq!(done.errors, "vmprobe: the guest ended: killed (exit 6)\n");
}

#[tokio::test]
async fn functions_are_listed_with_why_they_cannot_be_probed() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["list", "vfs_*"]).await;
    let note = "vmprobe: 1 of 2 functions can't be probed: --all shows them with the reason\n";
    assert_done(&done, "vfs_write\n", note);
    let done = vmprobe(&server, &["list", "vfs_*", "--all"]).await;
    assert_done(&done, "vfs_read\tnoinstr: because\nvfs_write\n", "");
    let done = vmprobe(&server, &["list", "vfs_*", "--json"]).await;
    let function: Value = serde_json::from_str(done.lines()[0]).unwrap();
    assert_eq!(function["can_be_probed"], false);
    assert_eq!(function["address"], "0x6000");
    let done = vmprobe(&server, &["list", "nothing"]).await;
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.errors,
        "vmprobe: no function of this kernel matches `nothing`\n"
    );
}

#[tokio::test]
async fn types_are_shown_by_name_and_listed_by_pattern() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["types", "struct file"]).await;
    let file = "struct file {\n\tunsigned int f_mode;\n}; /* size: 4 */\n";
    assert_done(&done, file, "");
    let done = vmprobe(&server, &["types", "file*"]).await;
    assert_done(&done, "struct file\nunion file_any\nstruct filename\n", "");
    for name in ["struct nobody", "nobody*"] {
        assert_eq!(vmprobe(&server, &["types", name]).await.code, Some(1));
    }
}

#[tokio::test]
async fn a_probe_with_arguments_shows_them_in_the_list() {
    let (_fake, server) = Fake::with_guest().await;
    let definition = "p:open vfs_read dfd name=+u0($arg2):ustring stack if dfd > 5";
    let add = ["probe", "add", definition];
    vmprobe(&server, &add).await;
    let done = vmprobe(&server, &["probe", "list"]).await;
    let words = "  dfd name=+u0($arg2):ustring stack=16 if dfd > 5  yes";
    assert!(done.output.contains(words), "{}", done.output);
    let done = vmprobe(&server, &["probe", "list", "--json"]).await;
    let probe: Value = serde_json::from_str(done.lines()[0]).unwrap();
    assert_eq!(probe["arguments"][1]["definition"], "+u0($arg2):ustring");
    assert_eq!(probe["filter"], "dfd > 5");
    assert_eq!(probe["stack"], 16);
}
