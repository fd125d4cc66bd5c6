//! The whole kernel: a jump on every function that can have one.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::v1::Probe;

use super::{is_jump, settle, settle_paused};
use crate::context::Context;
use crate::linux::code;
use crate::linux::functions::{self, Account, Function};
use crate::linux::guest::{Guest, VM, files};
use crate::linux::no_jump::Reasons;
use crate::linux::offer::offer;
use crate::linux::phases::Phases;
use crate::linux::text::Text;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_function_of_6_1_can_be_a_jump_while_the_guest_works",
        ids: &["JP04", "JP09"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "every_function_of_6_12_can_be_a_jump_while_the_guest_works",
        ids: &["JP04", "JP09"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_12),
    },
];

const VCPUS: u32 = 4;
/// Probes in a batch.
const BATCH: usize = 4000;
/// Size of an instruction at most.
const LONGEST: usize = 15;
/// Bytes of a jump: an instruction of at least this length is the only one in its region.
const JUMP_LEN: usize = 5;
/// The least jumps among a hundred functions that can be probed.
const MOST: usize = 99;

/// Probes every function.
fn sweep(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        // Once without probes, so that the kernel patches first what it patches at a first use.
        guest.work("sweep count=1").await?;
        let mut phases = Phases::default();
        let text = phases.time("text", Text::of(&guest)).await?;
        let functions = phases
            .time("functions", functions::all(&mut guest, &text))
            .await?;
        let mut account = Account::new(&functions, &text);
        // Functions in the blacklist are left out: the sweep of breakpoints checks that each is
        // refused.
        let (listed, free): (Vec<&Function>, Vec<_>) = functions
            .iter()
            .partition(|function| function.listed(&text).next().is_some());
        listed.iter().for_each(|it| account.list(it));
        // With breakpoints there the guest makes no headway in the lab until they are jumps.
        let (returns, free): (Vec<_>, Vec<_>) = free
            .into_iter()
            .partition(|function| function.is_return_thunk());

        let mut total = Totals::default();
        let batches = free.chunks(BATCH).map(|batch| (batch, true));
        for (batch, works) in batches.chain([(&*returns, false)]) {
            let places: Vec<String> = batch.iter().map(|it| it.place.clone()).collect();
            let offered = phases.time("offers", offer(&guest, &places)).await?;
            account.add(&offered)?;
            // The first batch becomes jumps while the guest executes it.
            let settled = match total.registered == 0 {
                true => phases.time("first jumps", settle(&guest, &[])).await?,
                false => phases.time("jumps", settle_paused(&guest)).await?,
            };
            let settled = settled.probes;
            if works {
                let work = guest.work("sweep count=1");
                phases.time("work", work).await?;
            }
            let after = guest.client.list_probes(VM).await?;
            total.add(&settled, &after, &text)?;
            let ids = offered.ids();
            let removing = guest.client.unregister_probes(VM, ids, Vec::new());
            phases.time("removals", removing).await?;
        }
        let switched = phases.time("text", text.untouched(&guest)).await?;
        guest.work("sweep count=1").await?;
        let optimizer = guest.client.get_vm(VM).await?.optimizer;
        let optimizer = optimizer.unwrap_or_default();
        guest.finish().await?;
        account.check(functions.len())?;
        check_eq!(total.registered, account.probed, "probes that settled");

        total.reasons.show();
        check!(
            total.jumps * 100 >= total.registered * MOST,
            "only {} of {} are jumps: {:?}",
            total.jumps,
            total.registered,
            total.reasons
        );
        check!(total.hit > 500, "only {} functions were hit", total.hit);
        pass_with(format!(
            "{} functions: {account}; {} jumps ({:.2} %) in {} batches that stopped the guest for {} ms in \
             all; {} were hit, {} hits of jumps, {} missed, {} exits at tripwires; the others stay \
             breakpoints: {}; {switched} jump labels switched by the kernel itself; {phases}",
            functions.len(),
            total.jumps,
            total.jumps as f64 * 100.0 / total.registered.max(1) as f64,
            optimizer.batches,
            optimizer.stopped_ns / 1_000_000,
            total.hit,
            total.hits,
            total.missed,
            total.trips,
            total.reasons,
        ))
    })
}

/// The results of all batches.
#[derive(Debug, Default)]
struct Totals {
    registered: usize,
    jumps: usize,
    /// The fields from here on are of jumps only.
    hit: usize,
    hits: u64,
    missed: u64,
    trips: u64,
    /// Why the other probes are no jumps.
    reasons: Reasons,
}

impl Totals {
    /// Takes over the states and counts of probes, between two lists of them.
    fn add(&mut self, settled: &[Probe], after: &[Probe], text: &Text) -> Result<(), Failure> {
        let still: BTreeSet<u64> = after
            .iter()
            .filter(|it| is_jump(it))
            .map(|it| it.id)
            .collect();
        let settled: BTreeMap<u64, &Probe> =
            settled.iter().map(|probe| (probe.id, probe)).collect();
        self.registered += settled.len();
        for probe in after {
            let Some(before) = settled.get(&probe.id) else {
                continue;
            };
            if !is_jump(before) || !still.contains(&probe.id) {
                self.reasons.add(probe);
                continue;
            }
            self.jumps += 1;
            self.hit += usize::from(probe.hits > before.hits);
            self.hits += probe.hits - before.hits;
            self.missed += probe.missed - before.missed;
            let exits = probe.exits - before.exits;
            let first = code::decode(probe.address, text.at(probe.address, LONGEST));
            let one = first.first().is_some_and(|first| first.len() >= JUMP_LEN);
            check_eq!(
                if one { exits } else { 0 },
                0,
                "exits of a jump without tripwires: {probe:?}"
            );
            self.trips += exits;
        }
        Ok(())
    }
}
