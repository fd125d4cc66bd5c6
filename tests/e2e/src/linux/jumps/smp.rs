//! Exact counts of jumps while other probes come and go on several vCPUs.

use std::sync::atomic::{AtomicBool, Ordering};

use iced_x86::Instruction;
use vmprobe_client::Client;

use super::{SETTLE, jump};
use crate::context::{Context, Place};
use crate::linux::guest::{Guest, VM, files, quiet, specs};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "jumps_that_stay_count_every_call_of_4_vcpus_while_they_are_made_and_unmade",
        ids: &["JP04", "JP11", "KP14"],
        needs: Needs::Linux,
        run: |cx| churn(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "jumps_are_made_and_unmade_under_4_vcpus_of_6_12",
        ids: &["JP04", "JP11", "KP14"],
        needs: Needs::Linux,
        run: |cx| churn(cx, files::BZIMAGE_6_12),
    },
];

const VCPUS: u32 = 4;
/// Rounds, and calls on each vCPU in a round.
const ROUNDS: u64 = 30;
const CALLS: u64 = 400;
/// Bytes of a jump.
const JUMP_LEN: usize = 5;
const FUNCTION: &str = "__x64_sys_umask";
/// The least number of times that each jump has to be made again.
const AGAIN: u64 = 5;

/// What comes and goes, with `@` for the place of the jump that stays: probes that turn the jump at the same place into
/// a breakpoint, others in the same function, and functions that all vCPUs run all the time.
const VISITORS: &[&[&str]] = &[
    &["v0=@ nojump"],
    &["p:v1 @ post", "r:v2 __x64_sys_umask"],
    &[
        "v3=do_syscall_64",
        "v4=schedule count",
        "v5=__x64_sys_getpid",
    ],
    &[
        "v6=vfs_read",
        "r:v7 vfs_read",
        "v8=ktime_get count",
        "v9=rcu_sched_clock_irq",
    ],
    &["va=@ count", "vd=__x64_sys_umask"],
    &["vb=update_process_times", "vc=ktime_get lossless"],
];

fn churn(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        let subject = subject(&guest).await?;
        guest
            .probes(&[
                &format!("stays={}", subject.stays),
                &format!("counts={} count", subject.counts),
                &format!("r:returns {FUNCTION}"),
            ])
            .await?;
        let stays = jump(&guest, "stays").await?;
        jump(&guest, "counts").await?;
        jump(&guest, "returns").await?;

        let mut visitors = possible(&guest, &subject.stays).await?;
        visitors.extend(subject.others.iter().map(|place| vec![place.clone()]));
        visitors.push(subject.others);
        let before = batches(&guest.client).await?;

        // Records are read while the guest runs. If several vCPUs share a slow CPU with the reader, some records find
        // no room, and are missed.
        let starved = cx.place == Place::LabIntel;
        let (mut changes, mut expected, mut made_anew) = (0, 0, 0);
        // If jumps are made slowly, the guest finishes its calls before they were made often enough.
        while made_anew < AGAIN {
            changes += one_part(&mut guest, &visitors).await?;
            expected += u64::from(VCPUS) * CALLS * ROUNDS;
            for (name, may_miss) in [("stays", starved), ("counts", false), ("returns", starved)] {
                let probe = jump(&guest, name).await?;
                let missed = if may_miss { probe.missed } else { 0 };
                check_eq!(
                    (probe.hits, probe.missed),
                    (expected - missed, missed),
                    "hits and missed hits of {name} through {changes} changes"
                );
            }
            made_anew = batches(&guest.client).await? - before;
        }
        let exits = guest.listed("stays").await?.exits - stays.exits;
        check!(
            exits < expected,
            "{exits} exits for {expected} hits of what was to be a jump now and then"
        );
        check!(changes >= AGAIN, "only {changes} changes");
        guest.finish().await?;
        pass_with(format!(
            "{expected} calls counted exactly three times through {changes} changes and {made_anew} \
             batches of jumps; {exits} of them by breakpoints"
        ))
    })
}

/// Has the guest make all calls of the rounds while visitors come and go. Returns how often these did.
async fn one_part(guest: &mut Guest, visitors: &[Vec<String>]) -> Result<u64, Failure> {
    guest
        .say(&format!(
            "workload=smp syscall=umask count={CALLS} rounds={ROUNDS}"
        ))
        .await?;
    let done = AtomicBool::new(false);
    let client = guest.client.clone();
    let come_and_go = come_and_go(&client, visitors, &done);
    let work = async {
        let report = guest.console.report("done").await;
        done.store(true, Ordering::Relaxed);
        report
    };
    let (changes, report) = tokio::join!(come_and_go, work);
    let report = report?;
    quiet(&report)?;
    let expected = u64::from(VCPUS) * CALLS * ROUNDS;
    check_eq!(report["calls"], expected, "calls that the guest made");
    changes
}

/// Places in the function.
struct Subject {
    /// Where a jump overwrites several instructions.
    stays: String,
    /// The same again behind it.
    counts: String,
    /// All others, those that these jumps overwrite among them.
    others: Vec<String>,
}

async fn subject(guest: &Guest) -> Result<Subject, Failure> {
    let code = crate::linux::code::straight(guest, FUNCTION).await?;
    let at = |instruction: &Instruction| format!("{:#x}", instruction.ip());
    let places: Vec<String> = code.iter().map(at).collect();
    let mut others = crate::linux::whole::accepted(guest, &places).await?;
    let mut found = Vec::new();
    let mut free = 0;
    for pair in code.windows(2) {
        let [first, second] = pair else { continue };
        let both = [first, second].iter().all(|one| others.contains(&at(one)));
        if first.ip() >= free && first.len() < JUMP_LEN && both {
            found.push(at(first));
            free = first.ip() + (first.len() + second.len()).max(JUMP_LEN) as u64;
        }
    }
    let [stays, counts, ..] = &*found else {
        return Err(wrong!("too few short instructions: {code:x?}"));
    };
    let (stays, counts) = (stays.clone(), counts.clone());
    others.retain(|place| *place != stays && *place != counts);
    Ok(Subject {
        stays,
        counts,
        others,
    })
}

/// Those of the visitors that this kernel has and lets be probed.
async fn possible(guest: &Guest, stays: &str) -> Result<Vec<Vec<String>>, Failure> {
    let mut visitors = Vec::new();
    for batch in VISITORS {
        let mut possible = Vec::new();
        for definition in *batch {
            let definition = definition.replace('@', stays);
            if let Ok(probes) = guest.probes(&[&definition]).await {
                let ids = probes.iter().map(|probe| probe.id).collect();
                guest.client.unregister_probes(VM, ids, Vec::new()).await?;
                possible.push(definition);
            }
        }
        if !possible.is_empty() {
            visitors.push(possible);
        }
    }
    check!(visitors.len() > 3, "only these can be probed: {visitors:?}");
    Ok(visitors)
}

/// Lets each batch in turn come and go until the guest is done: sometimes at once, sometimes when all probes are
/// settled. Returns how often.
async fn come_and_go(
    client: &Client,
    visitors: &[Vec<String>],
    done: &AtomicBool,
) -> Result<u64, Failure> {
    let mut changes = 0;
    while !done.load(Ordering::Relaxed) {
        // In each turn, a batch meets another wait.
        for (wait, batch) in visitors.iter().enumerate() {
            let wait = wait as u64 + changes / visitors.len() as u64;
            if done.load(Ordering::Relaxed) {
                break;
            }
            let texts: Vec<&str> = batch.iter().map(String::as_str).collect();
            let probes = client.register_probes(VM, specs(&texts)?).await?;
            if wait.is_multiple_of(2) {
                settled(client).await?;
            }
            let ids = probes.iter().map(|probe| probe.id).collect();
            client.unregister_probes(VM, ids, Vec::new()).await?;
            if wait.is_multiple_of(3) {
                settled(client).await?;
            }
            changes += 1;
        }
    }
    Ok(changes)
}

async fn settled(client: &Client) -> Result<(), Failure> {
    let all = client.wait_probes(VM, Vec::new(), Vec::new(), SETTLE);
    all.await.map(drop)?;
    Ok(())
}

/// Returns how many batches of jumps there have been.
async fn batches(client: &Client) -> Result<u64, Failure> {
    let optimizer = client.get_vm(VM).await?.optimizer;
    Ok(optimizer.map_or(0, |optimizer| optimizer.batches))
}
