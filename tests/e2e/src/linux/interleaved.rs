//! Exact counts while several clients' probes come and go on many vCPUs, against the guest's own tracer.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use vmprobe_client::Client;

use super::guest::{Guest, VM, files, quiet, specs};
use super::jumps::{SETTLE, is_jump, settle};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "with_4_vcpus_of_6_1_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
        ids: &["KP14", "JP04", "VM02"],
        needs: Needs::Linux,
        run: |cx| interleaved(cx, files::BZIMAGE_6_1, 4),
    },
    Test {
        name: "with_4_vcpus_of_6_12_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
        ids: &["KP14", "JP04", "VM02"],
        needs: Needs::Linux,
        run: |cx| interleaved(cx, files::BZIMAGE_6_12, 4),
    },
    Test {
        name: "with_8_vcpus_of_6_1_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
        ids: &["KP14", "JP04", "VM02"],
        needs: Needs::Linux,
        run: |cx| interleaved(cx, files::BZIMAGE_6_1, 8),
    },
    Test {
        name: "with_8_vcpus_of_6_12_and_3_clients_hits_are_what_the_guest_s_tracer_counts",
        ids: &["KP14", "JP04", "VM02"],
        needs: Needs::Linux,
        run: |cx| interleaved(cx, files::BZIMAGE_6_12, 8),
    },
];

const FUNCTION: &str = "__x64_sys_umask";
/// Rounds, and calls on all vCPUs together in a round.
const ROUNDS: u64 = 10;
const CALLS: u64 = 4800;
/// The least number of times, for each vCPU in each round, that the guest's next call is another vCPU's.
const SWITCHES: u64 = 1;

/// What each client's probes are, batch by batch, with `@` for the place of the probe that stays and `#`
/// for the client's number.
const VISITORS: [&[&[&str]]; 3] = [
    // The same place, as a breakpoint and as a jump.
    &[
        &["a#0=@ nojump"],
        &["a#1=@"],
        &["p:a#2 @ post"],
        &["a#3=@ count", "r64:a#4 __x64_sys_umask"],
    ],
    // Functions that all vCPUs run all the time.
    &[
        &["b#0=do_syscall_64", "b#1=ktime_get count"],
        &["b#2=update_process_times", "b#3=rcu_sched_clock_irq"],
        &["b#4=schedule count nojump", "p:b#5 ktime_get post"],
    ],
    // Many at a time.
    &[
        &["c#0=vfs_read", "r:c#1 vfs_read", "c#2=vfs_write"],
        &["c#3=__x64_sys_getpid", "c#4=__x64_sys_umask"],
        &[
            "c#5=ktime_get",
            "c#6=hrtimer_interrupt",
            "c#7=try_to_wake_up",
        ],
    ],
];

/// Checks the counts once with breakpoints only, once with jumps, in one boot.
fn interleaved(cx: &Context, kernel: &'static str, vcpus: u32) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, vcpus).await?;
        let online = guest.work("cpus").await?;
        check_eq!(online["online"], vcpus, "CPUs that the guest sees");
        let mut remarks = Vec::new();
        for jumps in [false, true] {
            guest.client.set_optimization(VM, jumps).await?;
            remarks.push(churn(&mut guest, vcpus, jumps).await?);
        }
        guest.finish().await?;
        pass_with(remarks.join("; "))
    })
}

async fn churn(guest: &mut Guest, vcpus: u32, jumps: bool) -> Result<String, Failure> {
    let kind = if jumps { "jumps" } else { "breakpoints" };
    // The host reads the records of jumps while the guest runs. If the host's thread gets no CPU meanwhile, some
    // records find no room, and are missed.
    let how = if jumps { " count" } else { "" };
    let stays = guest.probe(&format!("stays={FUNCTION}{how}")).await?;
    guest.probe(&format!("r64:returns {FUNCTION}{how}")).await?;
    settle(guest, &["stays", "returns"]).await?;
    let place = format!("{:#x}", stays.address);
    let mut clients = Vec::new();
    for (number, batches) in VISITORS.iter().enumerate() {
        // Each client has a connection of its own.
        let client = Client::connect(guest.endpoint()).await?;
        let mut batches = possible(&client, batches, &place, number).await?;
        if number == 0 {
            // All instructions that are executed whenever the function is called, at once.
            batches.push(inside(guest).await?);
        }
        clients.push((client, batches));
    }
    let (mut changes, mut all, mut remark) = ([0; 3], 0, String::new());
    // If the host gets little of the CPU, the guest has made its calls before enough probes have come and gone.
    while changes.iter().any(|changes| *changes < 2) || changes.iter().sum::<u64>() < ROUNDS {
        let report = one_part(guest, vcpus, &clients, &mut changes).await?;
        all += CALLS * ROUNDS;
        counted(guest, vcpus, &report, all, jumps).await?;
        remark = format!(
            "the next call was another vCPU's {} times of {}, all vCPUs called at the same time in {} of \
             {ROUNDS} rounds",
            report["switches"], report["calls"], report["together"]
        );
    }
    guest.remove(&["stays", "returns"]).await?;
    Ok(format!(
        "{kind}: {all} calls counted exactly through {changes:?} batches; at the end {remark}"
    ))
}

type Visitor = (Client, Vec<Vec<String>>);

/// Has the guest make all calls of the rounds while the clients' probes come and go, and returns its report. Adds to
/// `changes` how often they came and went.
async fn one_part(
    guest: &mut Guest,
    vcpus: u32,
    clients: &[Visitor],
    changes: &mut [u64; 3],
) -> Result<Value, Failure> {
    let calls = CALLS / u64::from(vcpus);
    guest
        .say(&format!(
            "workload=interleaved syscall=umask count={calls} rounds={ROUNDS}"
        ))
        .await?;
    guest.console.report("armed").await?;
    let done = AtomicBool::new(false);
    let [first, second, third] = changes;
    let (first, second, third) = (
        come_and_go(&clients[0], first, &done),
        come_and_go(&clients[1], second, &done),
        come_and_go(&clients[2], third, &done),
    );
    let work = async {
        let report = guest.console.report("done").await;
        done.store(true, Ordering::Relaxed);
        report
    };
    let (first, second, third, report) = tokio::join!(first, second, third, work);
    first.and(second).and(third)?;
    report
}

/// Checks that our counts, the guest's own and its tracer's are the same, and that its calls did interleave. The report
/// is of the last part, our counts are of all parts.
async fn counted(
    guest: &Guest,
    vcpus: u32,
    report: &Value,
    all: u64,
    jumps: bool,
) -> Result<(), Failure> {
    quiet(report)?;
    let expected = CALLS * ROUNDS;
    check_eq!(report["calls"], expected, "calls that the guest made");
    check_eq!(
        report["traced"],
        expected,
        "calls that the guest's tracer saw"
    );
    for cpu in 0..vcpus as usize {
        check_eq!(
            report["by_cpu"][cpu],
            expected / u64::from(vcpus),
            "calls that the guest's tracer saw on CPU {cpu}"
        );
    }
    let switches = report["switches"].as_u64().unwrap_or_default();
    check!(
        switches >= SWITCHES * u64::from(vcpus) * ROUNDS,
        "only {switches} times the next call was another vCPU's: {report}"
    );
    check!(
        report["together"].as_u64() > Some(0),
        "there was no round in which all vCPUs called at the same time: {report}"
    );
    for name in ["stays", "returns"] {
        let probe = guest.listed(name).await?;
        check_eq!(
            (probe.hits, probe.missed),
            (all, 0),
            "hits and missed hits of {name}"
        );
    }
    if jumps {
        let settled = settle(guest, &["stays", "returns"]).await?.probes;
        check!(
            settled.iter().all(is_jump),
            "they are no jumps: {settled:?}"
        );
    }
    Ok(())
}

/// The instructions of the function, up to the first branch, that take a probe.
async fn inside(guest: &Guest) -> Result<Vec<String>, Failure> {
    let code = super::code::straight(guest, FUNCTION).await?;
    let places = code
        .iter()
        .map(|instruction| format!("{:#x}", instruction.ip()));
    let places: Vec<String> = places.collect();
    super::whole::accepted(guest, &places).await
}

/// Those of the batches whose places this kernel has and lets be probed.
async fn possible(
    client: &Client,
    batches: &[&[&str]],
    place: &str,
    number: usize,
) -> Result<Vec<Vec<String>>, Failure> {
    let mut all = Vec::new();
    for batch in batches {
        let mut possible = Vec::new();
        for definition in *batch {
            let definition = definition
                .replace('@', place)
                .replace('#', &number.to_string());
            if let Ok(probes) = client.register_probes(VM, specs(&[&definition])?).await {
                let ids = probes.iter().map(|probe| probe.id).collect();
                client.unregister_probes(VM, ids, Vec::new()).await?;
                possible.push(definition);
            }
        }
        if !possible.is_empty() {
            all.push(possible);
        }
    }
    check!(all.len() > 1, "only these can be probed: {all:?}");
    Ok(all)
}

/// Lets each batch in turn come and go until the guest is done, beginning where the last call stopped. Sometimes a
/// batch goes at once, sometimes when all probes are settled. Adds how often.
async fn come_and_go(
    (client, batches): &Visitor,
    changes: &mut u64,
    done: &AtomicBool,
) -> Result<(), Failure> {
    while !done.load(Ordering::Relaxed) {
        let batch = &batches[*changes as usize % batches.len()];
        let texts: Vec<&str> = batch.iter().map(String::as_str).collect();
        let probes = client.register_probes(VM, specs(&texts)?).await?;
        if changes.is_multiple_of(3) {
            client
                .wait_probes(VM, Vec::new(), Vec::new(), SETTLE)
                .await?;
        }
        let ids = probes.iter().map(|probe| probe.id).collect();
        client.unregister_probes(VM, ids, Vec::new()).await?;
        *changes += 1;
    }
    Ok(())
}
