//! What probes, and clients that are asked at each hit, do to a Linux guest. The guest's process reports it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vmprobe_client::spec;
use vmprobe_client::v1::{HeldHit, NoJumpReason, OptimizationState, Probe, VmState};
use vmprobe_client::{ClientError, HeldHits, HitMessage};

use super::guest::{Config, Guest, VM, files};
use super::list::vmprobe;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};
use crate::tiny::actions::action;

pub const TESTS: &[Test] = &[
    Test {
        name: "a_process_gets_what_the_actions_of_probes_make_of_its_calls",
        ids: &["KP20"],
        needs: Needs::Linux,
        run: |cx| acting(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "a_process_of_6_1_gets_what_the_actions_of_probes_make_of_its_calls",
        ids: &["KP20"],
        needs: Needs::Linux,
        run: |cx| acting(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_client_answers_hits_of_several_vcpus_and_one_that_does_not_is_dropped",
        ids: &["KP20"],
        needs: Needs::Linux,
        run: answering,
    },
];

/// Longer than any answer takes.
const LONG: Duration = Duration::from_secs(60);
/// Time for a probe to become a jump.
const SETTLED: Duration = Duration::from_secs(120);

/// Boots a guest on a server that lets clients change guests.
async fn guest(cx: &Context, kernel: &'static str) -> Result<Guest, Failure> {
    let config = Config {
        kernel,
        vcpus: 2,
        server_args: &["--allow-changes"],
        ..Config::new("workload=echo")
    };
    let mut guest = Guest::boot(cx, &config).await?;
    guest.console.report("ready").await?;
    Ok(guest)
}

/// Returns the results of the process's system calls.
async fn answers(guest: &mut Guest) -> Result<Value, Failure> {
    let mut done = guest.work("answers").await?;
    let fields = done.as_object_mut();
    let fields = fields.ok_or_else(|| wrong!("the report is no object"))?;
    fields.retain(|name, _| !["event", "workload"].contains(&name.as_str()));
    Ok(done)
}

/// The definition of a probe, its action, and the only call with another result then.
const CASES: [(&str, &str, &str, i64); 8] = [
    ("p:it __x64_sys_getuid", "override 4711", "getuid", 4711),
    ("r:it __x64_sys_getppid", "override 77", "getppid", 77),
    ("r:it __x64_sys_getppid rets", "override 78", "getppid", 78),
    ("p:it vfs_read if=pid==1", "set rdx=3", "read", 3),
    // The call's first argument is among the registers of user mode, to which the function's own argument points (`di`
    // of `struct pt_regs`, arch/x86/include/asm/ptrace.h).
    (
        "p:it __x64_sys_umask",
        "write rdi+0x70=ff01000000000000",
        "umask",
        0o777,
    ),
    // -EACCES.
    (
        "p:it do_sys_openat2 if=pid==1",
        "override -13",
        "open_error",
        13,
    ),
    // A module's function, as a file's `open`: -EBUSY and -ENOMEM.
    ("p:it tun:tun_chr_open", "override -16", "device_error", 16),
    ("r:it tun:tun_chr_open", "override -12", "device_error", 12),
];

fn acting(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = guest(cx, kernel).await?;
        guest.work("load module=tun").await?;
        let plain = answers(&mut guest).await?;
        let expected = json!({
            "getuid": 0, "getppid": 0, "umask": 0o22, "read": 16, "open_error": null, "device_error": null
        });
        check_eq!(plain, expected, "what the calls answer by themselves");
        for (definition, text, which, value) in CASES {
            let probe = act(&guest, definition, text).await?;
            let changed = answers(&mut guest).await?;
            let mut expected = plain.clone();
            expected[which] = value.into();
            if which == "open_error" {
                expected["read"] = Value::Null;
                expected["device_error"] = value.into();
            }
            let removed = guest.remove(&["it"]).await?;
            let why = &removed[0].action_failure;
            check_eq!(
                changed,
                expected,
                "answers with `{text}` at `{definition}` ({why})"
            );
            check!(
                removed[0].actions_done > 0,
                "no action of {definition} was done"
            );
            check_eq!(
                removed[0].actions_failed,
                0,
                "failed actions of {definition}: {why}"
            );
            let optimization = probe.optimization.unwrap_or_default();
            let kinds = [
                NoJumpReason::Unspecified,
                NoJumpReason::Actions,
                NoJumpReason::OwnReturns,
            ];
            check!(
                kinds.contains(&optimization.reason_kind()),
                "{optimization:?}"
            );
            check_eq!(
                answers(&mut guest).await?,
                plain,
                "what the calls answer afterwards"
            );
        }

        act(&guest, "p:it __x64_sys_getuid", "pause").await?;
        guest.say("workload=answers").await?;
        while guest.client.get_vm(VM).await?.state() != VmState::Paused {
            tokio::task::yield_now().await;
        }
        check_eq!(guest.listed("it").await?.hits, 1, "hits until the pause");
        guest.client.resume_vm(VM).await?;
        let done = guest.console.report("done").await?;
        check_eq!(done["getuid"], 0, "what a paused call answers");
        let no_jump = guest.listed("it").await?.optimization.unwrap_or_default();
        check_eq!(
            no_jump.reason_kind(),
            NoJumpReason::Actions,
            "why it is no jump"
        );
        guest.remove(&["it"]).await?;

        let shown = shown(cx, &mut guest).await?;
        guest.finish().await?;
        pass_with(format!(
            "{} definitions; {}",
            CASES.len(),
            shown.join(" | ")
        ))
    })
}

/// Checks the actions that the command line takes and shows.
async fn shown(cx: &Context, guest: &mut Guest) -> Result<Vec<String>, Failure> {
    let deny = "p:deny do_sys_openat2 name=$arg2:ustring if pid == 1";
    let mut shown = vmprobe(cx, guest, &["probe", "add", deny, "--override", "-13"])?;
    let (text, place) = ("0xffffffff81000000=90", "p:wrong __x64_sys_getppid");
    let wrong = ["probe", "add", place, "--write", text, "--pause"];
    shown.extend(vmprobe(cx, guest, &wrong)?);
    guest.say("workload=answers").await?;
    while guest.client.get_vm(VM).await?.state() != VmState::Paused {
        tokio::task::yield_now().await;
    }
    guest.client.resume_vm(VM).await?;
    let done = guest.console.report("done").await?;
    check_eq!(done["open_error"], 13, "the error of a denied open");
    let list = vmprobe(cx, guest, &["probe", "list", "--wide"])?;
    let has = |text: &str| list.iter().any(|line| line.contains(text));
    check!(has("override -13 (2 done)"), "{list:?}");
    check!(has("(1 done, 1 failed: "), "{list:?}");
    shown.extend(vmprobe(cx, guest, &["probe", "list"])?);
    shown.extend(list);
    guest.remove(&["deny", "wrong"]).await?;
    Ok(shown)
}

async fn act(guest: &Guest, definition: &str, text: &str) -> Result<Probe, Failure> {
    let mut spec = spec::parse(definition).map_err(|error| wrong!("{error}"))?;
    spec.actions = vec![action(text)?];
    let mut probes = guest.client.register_probes(VM, vec![spec]).await?;
    Ok(probes.remove(0))
}

async fn attend(guest: &Guest, time: Duration) -> Result<HeldHits, Failure> {
    let names = vec!["it".to_owned()];
    Ok(guest.client.handle_hits(VM, vec![], names, time).await?)
}

async fn hit(hits: &mut HeldHits) -> Result<Box<HeldHit>, Failure> {
    match hits.next().await? {
        Some(HitMessage::Hit(hit)) => Ok(hit),
        other => Err(wrong!("a hit was expected, not {other:?}")),
    }
}

/// Waits until the probe is a jump.
async fn jump(guest: &Guest) -> Result<(), Failure> {
    let since = Instant::now();
    loop {
        let names = vec!["it".to_owned()];
        guest.client.wait_probes(VM, vec![], names, SETTLED).await?;
        let now = guest.listed("it").await?.optimization.unwrap_or_default();
        match now.state() {
            OptimizationState::Optimized => return Ok(()),
            // The server may take a moment to notice that a client has gone.
            OptimizationState::Waiting if since.elapsed() < SETTLED => {}
            _ if now.reason_kind() == NoJumpReason::Attended && since.elapsed() < SETTLED => {
                tokio::task::yield_now().await;
            }
            _ => return Err(wrong!("the probe is no jump: {now:?}")),
        }
    }
}

const CALLS: u64 = 3;

fn answering(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = guest(cx, files::BZIMAGE_6_12).await?;
        guest.probe("p:it __x64_sys_getuid").await?;
        jump(&guest).await?;
        let mut hits = attend(&guest, LONG).await?;
        let attended = guest.listed("it").await?;
        check!(attended.attended, "nobody is asked");
        // The reason why it is no jump is found in the background.
        let names = vec!["it".to_owned()];
        guest.client.wait_probes(VM, vec![], names, SETTLED).await?;
        let settled = guest.listed("it").await?.optimization.unwrap_or_default();
        let why = settled.reason_kind();
        check_eq!(why, NoJumpReason::Attended, "why it is no jump");

        guest.say("workload=answers").await?;
        let first = hit(&mut hits).await?;
        let event = first.event.clone().unwrap_or_default();
        let context = event.context.unwrap_or_default();
        check_eq!(context.pid, 1, "whose call it is");
        // Reads the task's name from the guest's memory. It must be the one in the event.
        let place = event.task;
        let task = hits.read_memory(first.number, place, 8192).await?;
        let comm = &context.comm;
        check!(
            task.windows(comm.len()).any(|bytes| bytes == comm),
            "no {comm:?} in the task at {place:#x}"
        );
        hits.answer(first.number, vec![action("override 99")?])
            .await?;
        let done = guest.console.report("done").await?;
        check_eq!(done["getuid"], 99, "what the process gets");

        // The second vCPU comes to its hit while the first one stands still.
        let workload = format!("workload=threads syscall=getuid count={CALLS}");
        guest.say(&workload).await?;
        for _ in 0..CALLS {
            let (one, other) = (hit(&mut hits).await?, hit(&mut hits).await?);
            let vcpu = |hit: &HeldHit| hit.event.clone().unwrap_or_default().vcpu;
            check!(
                vcpu(&one) != vcpu(&other),
                "two hits of vCPU {}",
                vcpu(&one)
            );
            hits.answer(other.number, vec![]).await?;
            hits.answer(one.number, vec![]).await?;
        }
        guest.console.report("done").await?;
        drop(hits);
        jump(&guest).await?;

        let mut hits = attend(&guest, Duration::from_millis(100)).await?;
        guest.say("workload=answers").await?;
        hit(&mut hits).await?;
        match hits.next().await {
            Err(ClientError::Timeout) => {}
            other => return Err(wrong!("without an answer the stream goes on: {other:?}")),
        }
        let done = guest.console.report("done").await?;
        check_eq!(done["getuid"], 0, "what the process gets");
        jump(&guest).await?;
        check_eq!(answers(&mut guest).await?["getuid"], 0, "afterwards");
        let probe = guest.listed("it").await?;
        check_eq!(probe.hits, 3 + 2 * CALLS, "hits");
        guest.remove(&["it"]).await?;
        guest.finish().await?;
        pass()
    })
}
