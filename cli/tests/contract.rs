//! The program `vmprobe` against a server that keeps to the contract: what it asks for, and what it
//! shows of the answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

mod fake;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fake::Fake;
use fake::command::{run, vmprobe};
use serde_json::{Value, json};

/// Makes a `vmprobe` whose `vmprobed` is one that runs already.
fn installed(name: &str, server: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_vmprobe"), folder.join("vmprobe")).unwrap();
    let script = format!("#!/bin/sh\necho listening on http://{server}\ncat >/dev/null\n");
    let program = folder.join("vmprobed");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder.join("vmprobe")
}

#[tokio::test]
async fn probes_of_all_kinds_are_added_listed_and_switched() {
    let (_fake, server) = Fake::with_guest().await;
    let add = [
        "probe",
        "add",
        "p vfs_read+0x10 post",
        "r64:done vfs_read",
        "w:tick jiffies/4:rw",
        "ext4:f",
    ];
    let done = vmprobe(&server, &add).await;
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert_eq!(done.errors, "vmprobe: the guest stood still for 12.3µs\n");
    let kinds = ["p post", "r64", "w/4:rw", "p"];
    for (line, kind) in done.lines()[1..].iter().zip(kinds) {
        assert!(line.contains(&format!("  {kind}  ")), "{line}");
    }

    let done = vmprobe(&server, &["probe", "disable", "done", "1"]).await;
    assert_eq!(done.lines().len(), 3, "{}", done.output);
    assert!(done.lines()[1].contains("disabled"), "{}", done.output);
    let done = vmprobe(&server, &["probe", "enable", "nobody"]).await;
    assert_eq!(done.code, Some(1));
    assert_eq!(done.errors, "vmprobe: no probe is called `nobody`\n");
    vmprobe(&server, &["probe", "enable", "1"]).await;

    let done = vmprobe(&server, &["probe", "list", "--kernel"]).await;
    assert_eq!(
        done.lines(),
        [
            "0000000000006010  k  vfs_read+0x10    [OPTIMIZED]",
            "0000000000006000  r  vfs_read+0x0    [DISABLED][OPTIMIZED]",
            "0000000000008000  w  jiffies+0x0    [OPTIMIZED]",
        ]
    );
    assert!(
        done.errors.contains("modules aren't loaded yet: 1"),
        "{}",
        done.errors
    );

    let done = vmprobe(&server, &["probe", "calls"]).await;
    let row = "  cat?  ffffffff81000007  done";
    assert!(done.lines()[2].ends_with(row), "{}", done.output);
    let done = vmprobe(&server, &["probe", "calls", "--json"]).await;
    let call: Value = serde_json::from_str(done.lines()[1]).unwrap();
    let expected = json!({
        "probes": [2],
        "task": "0xffff888000123400",
        "pid": 77,
        "comm": "cat\u{7}",
        "entry_tsc": 5,
        "caller": "0xffffffff81000007",
    });
    assert_eq!(call, expected);

    let done = vmprobe(&server, &["probe", "list", "--json"]).await;
    let values: Vec<Value> = done
        .lines()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(values[0]["post"], true);
    assert_eq!(values[1]["maxactive"], 64);
    assert_eq!(
        (&values[2]["length"], &values[2]["reads"]),
        (&4.into(), &true.into())
    );
    assert_eq!(
        (&values[3]["module"], &values[3]["state"]),
        (&"ext4".into(), &"pending".into())
    );
}

#[tokio::test]
async fn a_list_says_first_when_all_probes_are_disarmed() {
    let (fake, server) = Fake::with_guest().await;
    vmprobe(&server, &["probe", "add", "vfs_read", "--disabled"]).await;
    for (switch, told) in [("disarm", true), ("arm", false)] {
        assert_eq!(vmprobe(&server, &["probe", switch]).await.code, Some(0));
        for form in [&["probe", "list"][..], &["probe", "list", "--kernel"]] {
            let done = vmprobe(&server, form).await;
            assert_eq!(done.errors.contains("`vmprobe probe arm` arms"), told);
            assert!(
                done.output.to_lowercase().contains("disabled"),
                "{}",
                done.output
            );
        }
    }
    assert_eq!(fake.calls(), ["register", "arm", "arm"]);
}

#[tokio::test]
async fn a_probe_s_options_come_as_words_or_as_arguments() {
    let (_fake, server) = Fake::with_guest().await;
    let add = [
        "probe",
        "add",
        "a=vfs_read if=pid==7",
        "--count",
        "--no-jump",
        "--lossless",
        "--if",
        "edi == -100 && cpu < 2",
    ];
    let done = vmprobe(&server, &add).await;
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let done = vmprobe(&server, &["probe", "list", "--wide"]).await;
    let words = "count if=pid==7&&edi==-100&&cpu<2 lossless nojump  no ";
    assert!(done.output.contains(words), "{}", done.output);
    assert!(done.output.contains("asked: it was asked for"));

    let add = ["probe", "add", "b=vfs_read", "--regs", "rsi,rdi"];
    let done = vmprobe(&server, &add).await;
    assert!(done.output.contains("regs=rsi+rdi  yes"), "{}", done.output);

    let done = vmprobe(&server, &["probe", "list", "--json"]).await;
    let value: Value = serde_json::from_str(done.lines()[0]).unwrap();
    assert_eq!(value["options"]["capture"], "count");
    assert_eq!(value["optimization"]["state"], "not");

    let done = vmprobe(&server, &["probe", "add", "vfs_read", "--if", "ah==1"]).await;
    assert_eq!(done.code, Some(2));
    assert!(
        done.errors
            .ends_with("1 | vfs_read if=ah==1\n  |             ^^^^^\n"),
        "{}",
        done.errors
    );
}

#[tokio::test]
async fn jumps_are_switched_for_one_probe_or_all_and_waited_for() {
    let (fake, server) = Fake::with_guest().await;
    vmprobe(&server, &["probe", "add", "a=vfs_read", "b=vfs_read"]).await;
    let done = vmprobe(&server, &["probe", "optimize", "off", "b"]).await;
    assert_eq!(done.errors, "vmprobe: the guest stood still for 12.3µs\n");
    assert!(done.lines()[1].contains("asked: it"), "{}", done.output);
    let done = vmprobe(&server, &["probe", "list", "--kernel"]).await;
    assert_eq!(
        done.lines(),
        [
            "0000000000006000  k  vfs_read+0x0    [OPTIMIZED]",
            "0000000000006000  k  vfs_read+0x0    ",
        ]
    );

    for (switch, told) in [("off", true), ("on", false)] {
        let done = vmprobe(&server, &["probe", "optimize", switch]).await;
        assert_eq!((done.code, &*done.output), (Some(0), ""));
        let done = vmprobe(&server, &["probe", "list"]).await;
        assert_eq!(done.errors.contains("`vmprobe probe optimize on`"), told);
    }

    let done = vmprobe(&server, &["probe", "wait", "a"]).await;
    assert_eq!(done.lines().len(), 2, "{}", done.output);
    let told = "vmprobe: so far 1 probe in 1 batch, the guest stood still for 12.3µs\n";
    assert_eq!(done.errors, told);
    let done = vmprobe(&server, &["probe", "wait", "--json"]).await;
    assert_eq!(done.lines().len(), 2, "{}", done.output);

    vmprobe(&server, &["probe", "add", "slow=vfs_read"]).await;
    let done = vmprobe(&server, &["probe", "wait", "--timeout", "1"]).await;
    assert_eq!(done.code, Some(1));
    assert!(
        done.errors.contains("still waits after 1 s"),
        "{}",
        done.errors
    );
    let switches = fake.calls();
    let switches: Vec<_> = switches
        .iter()
        .filter(|call| **call != "register")
        .collect();
    assert_eq!(
        switches,
        [
            &"optimize",
            &"set optimization",
            &"set optimization",
            &"wait",
            &"wait",
            &"wait"
        ]
    );
}

#[tokio::test]
async fn the_blacklist_is_printed_as_it_comes() {
    let (_fake, server) = Fake::with_guest().await;
    let done = vmprobe(&server, &["probe", "blacklist"]).await;
    assert_eq!(done.lines().len(), 3);
    assert_eq!(
        done.lines()[2],
        "0xffffffff81000000-0xffffffff81000010\tc\tjump-label\tbecause"
    );
    let done = vmprobe(&server, &["probe", "blacklist", "b", "--json"]).await;
    let value: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(
        (&value["symbol"], &value["kind"]),
        (&"b".into(), &"ftrace".into())
    );
    let done = vmprobe(&server, &["probe", "blacklist", "zz"]).await;
    assert_eq!((done.code, done.output.as_str()), (Some(0), ""));
    assert!(
        done.errors.contains("nothing that matches `zz`"),
        "{}",
        done.errors
    );
}

#[tokio::test]
async fn a_trace_tells_the_kinds_of_events_apart() {
    let (_fake, server) = Fake::with_guest().await;
    let add = [
        "probe",
        "add",
        "a=vfs_read",
        "b=vfs_read post",
        "c=vfs_read fault",
        "r:d vfs_read",
        "w:e jiffies",
    ];
    vmprobe(&server, &add).await;
    let done = vmprobe(&server, &["trace", "--count", "5"]).await;
    let start = "             cat-77      [000] .....     0.00";
    let expected = [
        "1000: a: (vfs_read+0x0/0x800) rdi=0x0 rsi=0x0 rdx=0x0",
        "2000: b: (vfs_read+0x0/0x800) (post) rax=0xffffffed rdi=0x0 rsi=0x0 rdx=0x0",
        "3000: c: (vfs_read+0x0/0x800) (fault #PF error 0x2 at 0x10) rdi=0x0 rsi=0x0 rdx=0x0",
        "4000: d: (vfs_read+0x10/0x800 <- vfs_read) ret=0xffffffed (-19)  500.000 us  rdi=0x7000 rsi=0x0 rdx=0x0",
        "5000: e: (jiffies+0x0/0x1000) (access)",
    ];
    let mut lines = vec!["[LOST 3 EVENTS]".to_owned()];
    lines.extend(expected.map(|line| format!("{start}{line}")));
    assert_eq!(done.lines(), lines);

    let done = vmprobe(&server, &["trace", "--count", "5", "--json"]).await;
    let kinds: Vec<Value> = done.lines()[1..]
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone())
        .collect();
    assert_eq!(kinds, ["pre", "post", "fault", "return", "access"]);
}

#[tokio::test]
async fn a_boot_timeline_subscribes_first_and_kills_the_guest_at_pid_1() {
    let (fake, server) = Fake::start().await;
    let program = installed("timeline", &server);
    let done = run(
        &program,
        "",
        &["boot-timeline", "k", "--probe", "mine=vfs_read"],
    )
    .await;
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let calls = fake.calls();
    let ends: Vec<_> = calls.iter().filter(|call| **call != "register").collect();
    assert_eq!(ends, [&"create", &"subscribe", &"start", &"pause", &"kill"]);

    let timeline: Vec<Vec<&str>> = done
        .lines()
        .iter()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(done.lines()[0], "boot of 6.1.0-fake, in ms since mine");
    assert_eq!(timeline[1], ["0.000", "+0.000", "mine"]);
    assert_eq!(timeline[2], ["1.000", "+1.000", "start_kernel"]);
    assert_eq!(timeline[3], ["2.000", "+1.000", "mem_init"]);
    assert_eq!(timeline[4], ["3.000", "+1.000", "free_initmem"]);
    // The helper's, before free_initmem, isn't PID 1's.
    assert_eq!(timeline[5], ["5.000", "+2.000", "kernel_execve"]);
    assert!(
        done.output
            .contains("left out: run_init_process (this kernel has no symbol run_init_process)"),
        "{}",
        done.output
    );
    assert!(
        !done.output.contains("left out: mm_core_init"),
        "{}",
        done.output
    );
}

#[tokio::test]
async fn a_boot_timeline_lists_initcalls_with_level_and_result() {
    let (_fake, server) = Fake::start().await;
    let program = installed("timeline-initcalls", &server);
    let done = run(&program, "", &["boot-timeline", "k"]).await;
    let lines = done.lines();
    let at = lines
        .iter()
        .position(|line| line.starts_with("initcalls: 1"));
    let at = at.unwrap_or_else(|| panic!("{}", done.output));
    assert_eq!(
        lines[at],
        "initcalls: 1, together 0.500 ms; 1 returned an error"
    );
    assert_eq!(lines[at + 1], "0.500  subsys  acpi_init  returned -19");
    assert!(
        lines[at + 2].starts_with("3 events were lost"),
        "{}",
        done.output
    );

    let (_fake, server) = Fake::start().await;
    let program = installed("timeline-json", &server);
    let done = run(
        &program,
        "",
        &["boot-timeline", "k", "--json", "--top", "0"],
    )
    .await;
    let json: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(json["kernel"], "6.1.0-fake");
    assert_eq!(json["events_lost"], 3);
    assert_eq!(json["initcalls"]["calls"][0]["function"], "acpi_init");
    assert_eq!(json["initcalls"]["calls"][0]["level"], "subsys");
}

#[tokio::test]
async fn a_boot_timeline_may_stop_elsewhere_and_let_the_guest_go_on() {
    let (fake, server) = Fake::start().await;
    let program = installed("timeline-keep", &server);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("timeline-events");
    let file = file.to_str().unwrap();
    let watch = [
        "boot-timeline",
        "k",
        "--until",
        "free_initmem",
        "--keep",
        "--events",
        file,
    ];
    let done = run(&program, "", &watch).await;
    // This guest panics in the end.
    assert_eq!(done.code, Some(4), "{}", done.errors);
    assert!(
        done.errors.contains("the guest ended: panic (exit 4)"),
        "{}",
        done.errors
    );
    assert!(
        done.output.contains("not reached: kernel_execve"),
        "{}",
        done.output
    );
    assert!(fake.calls().ends_with(&["start", "wait"]));
    let events = fs::read_to_string(file).unwrap();
    assert!(
        events.contains(": start_kernel: (start_kernel+0x0/"),
        "{events}"
    );
}

#[tokio::test]
async fn a_boot_timeline_to_a_place_that_can_t_be_probed_fails_before_the_start() {
    let (fake, server) = Fake::start().await;
    let program = installed("timeline-until", &server);
    let done = run(&program, "", &["boot-timeline", "k", "--until", "nowhere"]).await;
    assert_eq!(done.code, Some(125));
    assert_eq!(done.errors, "vmprobe: this kernel has no symbol nowhere\n");
    assert!(!fake.calls().contains(&"start"));
}

#[tokio::test]
async fn a_dump_has_a_hole_where_the_server_sends_nothing() {
    let (_fake, server) = Fake::with_guest().await;
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest.core");
    // A file that is there is replaced.
    fs::write(&file, vec![7; 5 * 4096]).unwrap();
    let done = vmprobe(&server, &["dump", "-o", file.to_str().unwrap()]).await;
    assert_eq!(done.code, Some(0), "{}", done.errors);
    assert!(
        done.errors.contains("0 MiB of them not zero"),
        "{}",
        done.errors
    );
    let expected = [[1; 4096], [0; 4096], [2; 4096]].concat();
    assert!(fs::read(&file).unwrap() == expected);
    let nowhere = ["dump", "-o", "/no/folder/guest.core"];
    let done = vmprobe(&server, &nowhere).await;
    assert_eq!(done.code, Some(1));
    assert!(
        done.errors.contains("can't write the dump to /no/folder"),
        "{}",
        done.errors
    );
}
