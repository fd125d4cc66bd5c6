//! Exact counts while probes come and go on several vCPUs.

use std::sync::atomic::{AtomicBool, Ordering};

use super::guest::{Guest, VM, files, quiet, specs};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_probe_that_stays_counts_every_call_of_4_vcpus_while_others_come_and_go",
        ids: &["KP14"],
        needs: Needs::Linux,
        run: |cx| churn(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "a_probe_that_stays_counts_every_call_of_4_vcpus_of_6_12_while_others_come_and_go",
        ids: &["KP14"],
        needs: Needs::Linux,
        run: |cx| churn(cx, files::BZIMAGE_6_12),
    },
];

const VCPUS: u32 = 4;
/// Rounds, and calls on each vCPU in a round.
const ROUNDS: u64 = 40;
const CALLS: u64 = 400;
const FUNCTION: &str = "__x64_sys_umask";

/// What comes and goes: the same place, others of the same function, functions that all vCPUs run
/// all the time.
const VISITORS: &[&[&str]] = &[
    &["v0=__x64_sys_umask"],
    &["p:v1 __x64_sys_umask post", "r:v2 __x64_sys_umask"],
    &["v3=do_syscall_64", "v4=schedule", "v5=__x64_sys_getpid"],
    &[
        "v6=vfs_read",
        "r:v7 vfs_read",
        "v8=ktime_get",
        "v9=rcu_sched_clock_irq",
    ],
    &[
        "r64:va __x64_sys_umask",
        "vb=update_process_times",
        "p:vc ktime_get post",
    ],
];

fn churn(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let (changes, calls) = exact_counts(cx, kernel).await?;
        pass_with(format!(
            "{ROUNDS} rounds: {calls} calls counted exactly through {changes} batches that came and went"
        ))
    })
}

async fn exact_counts(cx: &Context, kernel: &'static str) -> Result<(u64, u64), Failure> {
    let mut guest = Guest::breakpoints(cx, kernel, VCPUS).await?;
    // Those batches whose places this kernel has and lets be probed.
    let mut visitors: Vec<Vec<&str>> = Vec::new();
    for batch in VISITORS {
        let mut possible = Vec::new();
        for definition in *batch {
            if let Ok(probes) = guest.probes(&[definition]).await {
                let ids = probes.iter().map(|probe| probe.id).collect();
                guest.client.unregister_probes(VM, ids, Vec::new()).await?;
                possible.push(*definition);
            }
        }
        if !possible.is_empty() {
            visitors.push(possible);
        }
    }
    check!(visitors.len() > 3, "only these can be probed: {visitors:?}");
    let inside: Vec<String> = super::code::straight(&guest, FUNCTION)
        .await?
        .iter()
        .map(|instruction| format!("{:#x}", instruction.ip()))
        .collect();
    let inside = super::whole::accepted(&guest, &inside).await?;
    let inside: Vec<&str> = inside.iter().map(String::as_str).collect();
    visitors.push(inside);

    guest
        .probes(&[
            &format!("stays={FUNCTION}"),
            &format!("r64:returns {FUNCTION}"),
        ])
        .await?;
    guest
        .say(&format!(
            "workload=smp syscall=umask count={CALLS} rounds={ROUNDS}"
        ))
        .await?;
    let done = AtomicBool::new(false);
    let client = guest.client.clone();
    let come_and_go = async {
        let mut changes = 0;
        for batch in visitors.iter().cycle() {
            if done.load(Ordering::Relaxed) {
                break;
            }
            let probes = client.register_probes(VM, specs(batch)?).await?;
            let ids = probes.iter().map(|probe| probe.id).collect();
            client.unregister_probes(VM, ids, Vec::new()).await?;
            changes += 1;
        }
        Ok::<u64, Failure>(changes)
    };
    let work = async {
        let report = guest.console.report("done").await;
        done.store(true, Ordering::Relaxed);
        report
    };
    let (changes, report) = tokio::join!(come_and_go, work);
    let (changes, report) = (changes?, report?);
    quiet(&report)?;
    let expected = u64::from(VCPUS) * CALLS * ROUNDS;
    check_eq!(report["calls"], expected, "calls that the guest made");
    for name in ["stays", "returns"] {
        let probe = guest.listed(name).await?;
        check_eq!(
            probe.hits,
            expected,
            "hits of {name} through {changes} changes"
        );
        check_eq!(probe.missed, 0, "missed hits of {name}");
    }
    check!(changes >= ROUNDS, "only {changes} batches came and went");
    guest.finish().await?;
    Ok((changes, expected))
}
