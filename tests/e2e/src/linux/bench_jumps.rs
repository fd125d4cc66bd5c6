//! Figures of jumps in a Linux guest: against the guest's own probes and against breakpoints, and how
//! long the vCPUs stand still for batches of them.

use std::time::Duration;

use vmprobe_client::v1::Optimizer;

use super::bench::{Figure, entries, rounded};
use super::guest::{Guest, VM, files, specs};
use super::jumps::{is_jump, jump, settle};
use crate::context::Context;
use crate::test::{Failure, check, wrong};

/// The function, the call that leads to it, and how often it is made in each of so many rounds. It begins
/// with a long `mov`: the kernel makes jumps only of kprobes on what is easily executed elsewhere.
const FUNCTION: &str = "__x64_sys_umask";
const CALL: &str = "umask";
const CALLS: u64 = 10_000;
const ROUNDS: u64 = 15;
/// Fewer, as each costs an exit.
const BREAKPOINT_CALLS: u64 = 1000;

/// Jumps of a batch.
const BATCHES: [usize; 4] = [10, 100, 1000, 10_000];

/// What a hit costs: of a jump with a full record, of one that counts, of a breakpoint, of the guest's own
/// kprobe event that is a jump. All in one guest, one after the other. Debian's 6.1 makes a jump of no
/// kprobe in these functions: it takes their jump to the return thunk for an indirect one.
pub async fn hits(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
    let client = guest.client.clone();
    let unregister = async |ids| client.unregister_probes(VM, ids, Vec::new()).await;
    let unprobed = time(&mut guest, CALLS).await?;

    let probe = guest
        .probes(&[&format!("full={FUNCTION}")])
        .await?
        .remove(0);
    jump(&guest, "full").await?;
    let full = time(&mut guest, CALLS).await? - unprobed;
    let recorded = guest.listed("full").await?;
    let exits = recorded.exits - probe.exits;
    guest.client.set_optimization(VM, false).await?;
    let breakpoint = time(&mut guest, BREAKPOINT_CALLS).await? - unprobed;
    guest.client.set_optimization(VM, true).await?;
    unregister(vec![probe.id]).await?;

    let counting = guest
        .probes(&[&format!("p:count {FUNCTION} count")])
        .await?
        .remove(0);
    jump(&guest, "count").await?;
    let count = time(&mut guest, CALLS).await? - unprobed;
    unregister(vec![counting.id]).await?;

    // On the same instruction.
    let at = format!("{FUNCTION}+{}", probe.offset);
    let own = time_own(&mut guest, CALLS, &at).await? - unprobed;
    guest.finish().await?;
    let costs = own.is_normal() && own.is_sign_positive();
    check!(costs, "the guest's own kprobe costs {own} ns a hit");

    let note = format!(
        "a hit above the unprobed call ({unprobed:.0} ns): our jump with a full record {full:.0} ns, one \
         that counts {count:.0} ns, our breakpoint {breakpoint:.0} ns, the guest's own kprobe event, \
         [OPTIMIZED], {own:.0} ns; medians of {ROUNDS} rounds; {} of {} records found the ring full",
        recorded.missed,
        recorded.hits + recorded.missed,
    );
    let figure = |id, value: f64, unit, how: &str, note: String| Figure {
        id,
        value: rounded(value),
        unit,
        place,
        how: how.to_owned(),
        note,
    };
    figures.push(figure(
        "BN05",
        full / own,
        "ratio",
        "jump with full record / the guest's own optimized kprobe event, same instruction, same guest",
        format!("{note}; limit 0.5, {}", if full / own <= 0.5 { "kept" } else { "missed" }),
    ));
    figures.push(figure(
        "BN06",
        breakpoint / full.max(1.0),
        "ratio",
        "breakpoint / jump with full record, same instruction, same guest",
        note,
    ));
    figures.push(figure(
        "JP01",
        exits as f64 / (2 * CALLS * ROUNDS) as f64,
        "exits/hit",
        "exits a hit of a jump; counted",
        format!("{} hits", 2 * CALLS * ROUNDS),
    ));
    Ok(())
}

/// Nanoseconds a call, the median of some rounds. There are as many before them, in which each page of a
/// ring is touched for the first time. Our rings are empty before each: the records of one have room.
async fn time(guest: &mut Guest, calls: u64) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..2 * ROUNDS {
        times.extend(rounds(guest, calls, 1, "").await?);
        guest.client.list_probes(VM).await?;
    }
    median(&times, calls)
}

/// The same with the guest's own kprobe at this place, which is there only once.
async fn time_own(guest: &mut Guest, calls: u64, place: &str) -> Result<f64, Failure> {
    let times = rounds(guest, calls, 2 * ROUNDS, &format!(" at={place}")).await?;
    median(&times, calls)
}

async fn rounds(
    guest: &mut Guest,
    calls: u64,
    rounds: u64,
    more: &str,
) -> Result<Vec<f64>, Failure> {
    let work = format!("timed syscall={CALL} count={calls} rounds={rounds}{more}");
    let done = guest.work(&work).await?;
    let times = done["ns"].as_array().into_iter().flatten();
    Ok(times.filter_map(serde_json::Value::as_f64).collect())
}

/// The median of the later rounds, for each call.
fn median(times: &[f64], calls: u64) -> Result<f64, Failure> {
    let mut times = times.get(ROUNDS as usize..).unwrap_or_default().to_vec();
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2);
    let median = median.ok_or_else(|| wrong!("the guest told too few times"))?;
    Ok(median / calls as f64)
}

/// How long the stop is in which a batch becomes jumps.
pub async fn batches(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 2).await?;
    guest.work("files count=20").await?;
    let most = BATCHES.iter().copied().max().unwrap_or(0);
    let places = entries(&guest, most).await?;
    let mut last: Option<(usize, f64)> = None;
    for count in BATCHES {
        let texts: Vec<&str> = places[..count].iter().map(String::as_str).collect();
        let probes = guest.client.register_probes(VM, specs(&texts)?).await?;
        let before = optimizer(&guest).await?;
        guest.client.set_optimization(VM, true).await?;
        let settled = settle(&guest, &[]).await?.probes;
        let after = optimizer(&guest).await?;
        let jumps = settled.iter().filter(|probe| is_jump(probe)).count();
        let stops = after.batches - before.batches;
        let micros = Duration::from_nanos(after.last_stopped_ns).as_nanos() as f64 / 1e3;
        let mut note = format!("{jumps} of {count} became jumps, in {stops} stops");
        if let Some((fewer, less)) = last {
            let (probes, time) = (count as f64 / fewer as f64, micros / less.max(0.001));
            let verdict = if time <= probes { "kept" } else { "missed" };
            note += &format!(
                "; {probes:.0} times the probes of the figure before take {time:.1} times as long \
                 (limit: no more than linearly, {verdict})"
            );
        }
        last = Some((count, micros));
        figures.push(Figure {
            id: "BN10",
            value: rounded(micros),
            unit: "us",
            place,
            how: format!("stop of 2 vCPUs in which {count} breakpoints become jumps"),
            note,
        });
        if count == 1000 {
            figures.push(Figure {
                id: "BN09",
                value: stops as f64,
                unit: "stops",
                place,
                how: "stops in which 1000 breakpoints become jumps".to_owned(),
                note: "limit 1".to_owned(),
            });
        }
        guest.client.set_optimization(VM, false).await?;
        let ids = probes.iter().map(|probe| probe.id).collect();
        guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    }
    guest.finish().await
}

async fn optimizer(guest: &Guest) -> Result<Optimizer, Failure> {
    let vm = guest.client.get_vm(VM).await?;
    vm.optimizer
        .ok_or_else(|| wrong!("the server doesn't tell what was optimized"))
}
