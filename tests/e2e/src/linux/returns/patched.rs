//! Return probes and the guest's live patching, which waits for tasks whose stack it can't follow.

use vmprobe_client::v1::FollowedCall;

use crate::context::Context;
use crate::events::next;
use crate::linux::guest::{Guest, VM, files};
use crate::linux::jumps::jump;
use crate::linux::steps::must;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[Test {
    name: "a_live_patch_waits_for_followed_calls_and_not_for_those_told_at_their_rets",
    ids: &["KP16", "KP22"],
    needs: Needs::Linux,
    run: patched,
}];

/// Tasks that sleep in the probed function.
const READERS: u64 = 4;
/// Where they sleep.
const SLEEPS_IN: &str = "pipe_read";
/// Patches another function, which is on no task's stack.
const PATCH: &str = "livepatch-begun __x64_sys_umask";
/// The kernel's function that tries to switch over all remaining tasks: when a patch is loaded, and then once a second
/// (`kernel/livepatch/transition.c`).
const TRY: &str = "klp_try_complete_transition";
/// After the beginning of this many tries, a patch counts as one that waits.
const IN_VAIN: u64 = 3;
/// At most this many tries complete a patch that nothing holds up: a try leaves out the tasks that run at the moment.
/// The sum of both is below 15, after which the kernel makes sleeping tasks return (`SIGNALS_TIMEOUT` there).
const ENOUGH: u64 = 5;

fn patched(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 2).await?;
        guest.probe(&format!("tries={TRY}")).await?;
        guest.say("workload=tools").await?;
        let followed = held_up(&mut guest).await?;
        let own = not_held_up(&mut guest).await?;
        guest.say("quit").await?;
        guest.console.report("done").await?;
        guest.finish().await?;
        pass_with(format!(
            "complete at try {followed} after the probe's removal, at try {own} with rets"
        ))
    })
}

/// Checks that a patch waits while calls are followed, by a jump or by a breakpoint, and is complete soon after the
/// probe's removal. Returns how many tries that has taken.
async fn held_up(guest: &mut Guest) -> Result<u64, Failure> {
    let id = guest.probe(&format!("r64:followed {SLEEPS_IN}")).await?.id;
    jump(guest, "followed").await?;
    must(guest, &format!("block {}", READERS / 2)).await?;
    guest.client.set_optimization(VM, false).await?;
    must(guest, &format!("block {}", READERS / 2)).await?;
    let tries = guest.listed("tries").await?.id;
    let mut stream = guest.client.events(VM, vec![tries]).await?;
    must(guest, &format!("come {PATCH}")).await?;
    next(&mut stream, IN_VAIN).await?;

    let calls = calls(guest, id).await?;
    check_eq!(calls.len() as u64, READERS, "calls listed: {calls:?}");
    let state = must(guest, "state").await?["state"].clone();
    let unpatched = state["unpatched"].as_array().cloned().unwrap_or_default();
    let waits_for = |call: &FollowedCall| {
        call.pid.is_some() && unpatched.iter().any(|it| it["pid"] == call.pid())
    };
    check!(
        calls.iter().all(waits_for),
        "the patch waits for {state}, and calls are {calls:?}"
    );

    let before = guest.listed("tries").await?.hits;
    let removed = guest.remove(&["followed"]).await?;
    let counts: Vec<_> = removed.iter().map(|it| (it.hits, it.missed)).collect();
    check_eq!(counts, [(0, READERS)], "returns told and missed");
    let tries = complete(guest, before).await?;
    must(guest, "go").await?;
    must(guest, "release").await?;
    Ok(tries)
}

/// Checks that a patch is complete while calls are under way that are reported at the function's own returns, and that
/// they are reported all the same. Returns how many tries that has taken.
async fn not_held_up(guest: &mut Guest) -> Result<u64, Failure> {
    let id = guest.probe(&format!("r64:own {SLEEPS_IN} rets")).await?.id;
    must(guest, &format!("block {READERS}")).await?;
    let before = guest.listed("tries").await?.hits;
    must(guest, &format!("come {PATCH}")).await?;
    let tries = complete(guest, before).await?;
    let calls = calls(guest, id).await?;
    check!(calls.is_empty(), "calls listed: {calls:?}");
    check_eq!(
        guest.listed("own").await?.hits,
        0,
        "returns told of sleepers"
    );
    must(guest, "go").await?;
    must(guest, "release").await?;
    let own = guest.listed("own").await?;
    check_eq!(
        (own.hits, own.missed),
        (READERS, 0),
        "returns told and missed"
    );
    Ok(tries)
}

/// Waits until the patch is complete. Returns how many tries there have been after the first `before`.
async fn complete(guest: &mut Guest, before: u64) -> Result<u64, Failure> {
    must(guest, "complete").await?;
    let tries = guest.listed("tries").await?.hits - before;
    check!(tries <= ENOUGH, "complete after {tries} tries");
    Ok(tries)
}

/// The calls that this probe follows.
async fn calls(guest: &Guest, id: u64) -> Result<Vec<FollowedCall>, Failure> {
    let mut calls = guest.client.calls(VM).await?;
    calls.retain(|call| call.probe_ids.contains(&id));
    Ok(calls)
}
