//! Figures of jumps in a Linux guest: against the guest's own probes and against breakpoints, and how
//! long the vCPUs stand still for batches of them.

use std::time::Duration;

use vmprobe_client::v1::{Optimizer, Probe};

use super::{Figure, entries, rounded, spread};
use crate::context::Context;
use crate::linux::guest::{Guest, VM, files, specs};
use crate::linux::jumps::{is_jump, jump, settle};
use crate::test::{Failure, check, wrong};

/// The probed function, which is that of a system call. It begins with a long `mov`: the kernel makes a kprobe a jump
/// only on instructions that are easily executed elsewhere.
const FUNCTION: &str = "__x64_sys_umask";
const CALL: &str = "umask";
/// Calls of a block with a breakpoint: fewer than of others, as each costs an exit.
const BREAKPOINT_CALLS: u64 = 1000;

/// Calls of a block in a comparison with the guest's own probe. Their records fill a ring more than ten times, so the
/// cost of emptying it is in the block's time. All blocks of the guest's own probe are as long: in short ones most of
/// the time would be the kernel's work at the first hit of a new probe.
const LONG_BLOCK: u64 = 300_000;
/// Calls of a block whose records have room in a ring: up to 419 bytes each of its 4 MiB.
const BLOCK: u64 = 10_000;
/// The same with stacks: up to 2,097 bytes each.
const STACK_BLOCK: u64 = 2000;
/// Rounds of a comparison; the first warms up.
const ABBA_ROUNDS: usize = 9;

/// Jumps of a batch.
const BATCHES: [usize; 4] = [10, 100, 1000, 10_000];

/// Measures what a hit costs: of a jump with a full record, of a jump that counts, of a breakpoint, and of the guest's
/// own kprobe event that is a jump. All in one guest, one after the other. Debian's 6.1 makes no kprobe in these
/// functions a jump: it takes their jump to the return thunk for an indirect one.
pub async fn hits(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut guest = Guest::new(cx, files::BZIMAGE_6_12, 1).await?;
    let probe = guest.probe(&format!("p:full {FUNCTION}")).await?;
    guest.remove(&["full"]).await?;
    let costs = costs(&mut guest).await?;

    // The second argument of the system call is a text of the process. `di` points to all registers of the process.
    const NAME: &str = "name=+0(+104(%di)):ustring";
    let at = format!("{FUNCTION}+{}", probe.offset);
    for (id, what, ours, behind, block) in [
        (
            "BN05",
            "full record",
            "lossless".to_owned(),
            String::new(),
            BLOCK,
        ),
        (
            "BN16",
            "`name=+0(+104(%di)):ustring`",
            format!("regs=none lossless {NAME}"),
            format!(",{NAME}"),
            BLOCK,
        ),
        (
            "BN18",
            "a stack of up to 16 frames",
            "regs=none lossless stack=16".to_owned(),
            ",stacktrace".to_owned(),
            STACK_BLOCK,
        ),
    ] {
        for calls in [block, LONG_BLOCK] {
            let blocks = Blocks {
                // Both probes are on the same instruction.
                ours: &ours,
                own: &format!("{at}{behind}"),
                calls,
            };
            let compared = compare(&mut guest, blocks).await?;
            let room = match calls == LONG_BLOCK {
                true => "whose records fill the ring many times, so the jump waits for the reader",
                false => "whose records have room in the ring",
            };
            figures.push(Figure {
                id,
                value: rounded(compared.ratio),
                unit: "ratio",
                place,
                how: format!(
                    "lossless jump with {what} / the guest's own optimized kprobe event of the same, same \
                     instruction, same guest, blocks of {calls} calls of ours and {LONG_BLOCK} of the guest's \
                     own in the order ours, own, own, ours, {room}"
                ),
                note: compared.note,
            });
        }
    }
    guest.finish().await?;

    let note = format!(
        "a hit above the unprobed call ({:.0} ns): our jump with a full record {:.0} ns, one that counts {:.0} ns, our \
         breakpoint {:.0} ns; medians of {} rounds of two blocks each, of {BLOCK} calls and of {BREAKPOINT_CALLS} with \
         the breakpoint",
        costs.unprobed,
        costs.full,
        costs.count,
        costs.breakpoint,
        ABBA_ROUNDS - 1
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
        "BN06",
        costs.breakpoint / costs.full.max(1.0),
        "ratio",
        "breakpoint / jump with full record, same instruction, same guest, blocks in turn",
        note,
    ));
    figures.push(figure(
        "JP01",
        costs.exits as f64 / costs.hits as f64,
        "exits/hit",
        "exits a hit of a jump; counted",
        format!("{} hits", costs.hits),
    ));
    Ok(())
}

/// What our probes cost a call, in nanoseconds: medians minus the median of an unprobed call.
struct Costs {
    unprobed: f64,
    /// A jump with all registers.
    full: f64,
    /// A jump that counts.
    count: f64,
    breakpoint: f64,
    /// Exits of all hits of jumps, and the hits.
    exits: u64,
    hits: u64,
}

/// What is hit in a block.
#[derive(Clone, Copy)]
enum Hit {
    Nothing,
    FullJump,
    CountingJump,
    Breakpoint,
}

/// Measures jumps and breakpoints at the same place.
async fn costs(guest: &mut Guest) -> Result<Costs, Failure> {
    let (mut exits, mut hits) = (0, 0);
    let kinds = [
        Hit::Nothing,
        Hit::FullJump,
        Hit::CountingJump,
        Hit::Breakpoint,
    ];
    let rounds = in_turn(kinds, async |hit| {
        let asked = match hit {
            Hit::Nothing => return block(guest, BLOCK, "").await,
            Hit::Breakpoint => return Ok(breakpoint_block(guest).await?.time),
            Hit::FullJump => "",
            Hit::CountingJump => "count",
        };
        let measured = jump_block(guest, BLOCK, asked).await?;
        exits += measured.exits;
        hits += BLOCK;
        Ok(measured.time)
    });
    let rounds = rounds.await?;
    let median_of = |cost: fn(&[f64; 4]) -> f64| {
        let mut costs: Vec<f64> = rounds.iter().skip(1).map(cost).collect();
        middle(&mut costs)
    };
    Ok(Costs {
        unprobed: median_of(|[unprobed, ..]| *unprobed),
        full: median_of(|[unprobed, full, ..]| full - unprobed),
        count: median_of(|[unprobed, _, count, _]| count - unprobed),
        breakpoint: median_of(|[unprobed, .., breakpoint]| breakpoint - unprobed),
        exits,
        hits,
    })
}

/// Measures nanoseconds a call in blocks of each of these kinds, for each round; the first round warms up. A round has
/// two blocks of a kind, in this order and back, and gives their mean: a drift during the round is in all of them.
async fn in_turn<Kind: Copy, const KINDS: usize>(
    kinds: [Kind; KINDS],
    mut block: impl AsyncFnMut(Kind) -> Result<f64, Failure>,
) -> Result<Vec<[f64; KINDS]>, Failure> {
    let mut rounds = Vec::new();
    for _ in 0..ABBA_ROUNDS {
        let mut means = [0.0; KINDS];
        for index in (0..KINDS).chain((0..KINDS).rev()) {
            means[index] += block(kinds[index]).await? / 2.0;
        }
        rounds.push(means);
    }
    Ok(rounds)
}

/// The median.
fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The results of the comparison with the guest's own probe.
struct Compared {
    ratio: f64,
    note: String,
}

/// Whose probe is hit in a block.
#[derive(Clone, Copy)]
enum Whose {
    Nobodys,
    Ours,
    TheGuests,
}

/// The blocks of a comparison.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    /// What follows the place in the text of our probe.
    ours: &'a str,
    /// The place of the guest's probe and what follows it.
    own: &'a str,
    /// Calls of a block without the guest's probe.
    calls: u64,
}

/// Compares the cost of a hit of our jump with one of the guest's own kprobe event at the same place. Our jump is
/// lossless: a vCPU that finds its ring full waits, in the block's time, and no record is left out.
///
/// # Errors
/// If a probe missed a call: then the comparison is void.
async fn compare(guest: &mut Guest, blocks: Blocks<'_>) -> Result<Compared, Failure> {
    let calls = blocks.calls;
    let kinds = [Whose::Nobodys, Whose::Ours, Whose::TheGuests];
    let rounds = in_turn(kinds, async |whose| match whose {
        Whose::Nobodys => block(guest, calls, "").await,
        Whose::Ours => Ok(jump_block(guest, calls, blocks.ours).await?.time),
        Whose::TheGuests => block(guest, LONG_BLOCK, &format!(" at={}", blocks.own)).await,
    });
    let (mut ratios, mut all) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (round, [unprobed, ours, own]) in rounds.await?.into_iter().enumerate() {
        let costs = [ours - unprobed, own - unprobed];
        let costs_something = costs[1].is_normal() && costs[1].is_sign_positive();
        check!(
            costs_something,
            "the guest's own kprobe costs {} ns a hit",
            costs[1]
        );
        if round > 0 {
            ratios.push(costs[0] / costs[1]);
            all.iter_mut()
                .zip(costs)
                .for_each(|(all, cost)| all.push(cost));
        }
    }
    let ratio = middle(&mut ratios);
    let [ours, own] = all.each_mut().map(|all| middle(all));
    let note = format!(
        "above the unprobed call, medians: ours {ours:.0} ns, the guest's own, [OPTIMIZED], {own:.0} ns; the \
         ratio is the median of {} rounds ({:.2} to {:.2}) of two blocks each, of {calls} calls of ours and \
         {LONG_BLOCK} of the guest's, of which neither missed one; limit 0.5, {}",
        ratios.len(),
        ratios[0],
        ratios[ratios.len() - 1],
        if ratio <= 0.5 { "kept" } else { "missed" },
    );
    Ok(Compared { ratio, note })
}

/// The result of a block.
struct Measured {
    /// Nanoseconds a call.
    time: f64,
    /// Exits of all hits of our probe.
    exits: u64,
}

/// Measures a block with our jump, whose definition ends with `asked`.
async fn jump_block(guest: &mut Guest, calls: u64, asked: &str) -> Result<Measured, Failure> {
    guest.probe(&format!("p:full {FUNCTION} {asked}")).await?;
    let before = jump(guest, "full").await?;
    our_block(guest, calls, before).await
}

/// Measures a block with our breakpoint.
async fn breakpoint_block(guest: &mut Guest) -> Result<Measured, Failure> {
    guest.client.set_optimization(VM, false).await?;
    let before = guest.probe(&format!("p:full {FUNCTION}")).await?;
    let measured = our_block(guest, BREAKPOINT_CALLS, before).await?;
    guest.client.set_optimization(VM, true).await?;
    Ok(measured)
}

async fn our_block(guest: &mut Guest, calls: u64, before: Probe) -> Result<Measured, Failure> {
    let time = block(guest, calls, "").await?;
    let removed = guest.remove(&["full"]).await?.remove(0);
    let told = (removed.hits - before.hits, removed.missed);
    check!(
        told == (calls, 0),
        "void: {told:?} hits and misses of our probe in {calls} calls"
    );
    Ok(Measured {
        time,
        exits: removed.exits - before.exits,
    })
}

/// Measures nanoseconds a call in a block; with a probe of the guest's own if `own` has a place.
async fn block(guest: &mut Guest, calls: u64, own: &str) -> Result<f64, Failure> {
    let work = format!("timed syscall={CALL} count={calls} rounds=1{own}");
    let done = guest.work(&work).await?;
    let told = (done["hits"].as_u64(), done["missed"].as_u64());
    check!(
        own.is_empty() || told == (Some(calls), Some(0)),
        "void: {told:?} hits and misses of the guest's own probe in {calls} calls"
    );
    let time = done["ns"][0].as_f64();
    let time = time.ok_or_else(|| wrong!("the guest told no time: {done}"))?;
    Ok(time / calls as f64)
}

/// Measures the stop in which a batch becomes jumps.
pub async fn batches(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut guest = Guest::new(cx, files::BZIMAGE_6_1, 2).await?;
    guest.client.set_optimization(VM, false).await?;
    guest.work("files count=20").await?;
    let most = BATCHES.iter().copied().max().unwrap_or(0);
    let places = entries(&guest, most).await?;
    let mut last: Option<(usize, f64)> = None;
    for count in BATCHES {
        let texts = spread(&places, count);
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
