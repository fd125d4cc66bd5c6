//! The whole kernel: a jump on every function that can have one.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::v1::Probe;

use super::code;
use super::guest::{Guest, VM, files};
use super::jumps::{is_jump, settle};
use super::whole::{blacklist, check_unchanged, entries, is_return_thunk, register};
use crate::context::Context;
use crate::say;
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
/// Bytes of a jump: an instruction of so many has nothing in its middle.
const JUMP_LEN: usize = 5;
/// Of a hundred functions that can be probed, so many have to be jumps.
const MOST: usize = 99;

/// Probes every function.
fn sweep(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        let blacklist = blacklist(&guest, "").await?;
        let range = start..start + length as u64;
        let (functions, places) = entries(&guest, range, &blacklist).await?;
        // Until they are jumps, the guest makes no headway in the lab with probes there.
        let (returns, places): (Vec<_>, Vec<_>) = places
            .into_iter()
            .partition(|place| is_return_thunk(place));
        // Once without probes: what the kernel patches when something is used for the first time.
        guest.work("sweep count=1").await?;
        let before = guest.memory(start, length).await?;

        let mut total = Totals::default();
        let mut refused = BTreeMap::new();
        for batch in places.chunks(BATCH).chain([&*returns]) {
            let (ids, _) = register(&guest, batch, &mut refused).await?;
            let settled = settle(&guest, &[]).await?.probes;
            if batch != returns {
                guest.work("sweep count=1").await?;
            }
            let after = guest.client.list_probes(VM).await?;
            total.add(&settled, &after, start, &before)?;
            guest.client.unregister_probes(VM, ids, Vec::new()).await?;
        }
        let after = guest.memory(start, length).await?;
        let by_kernel = check_unchanged(&before, &after, start, &blacklist)?;
        guest.work("sweep count=1").await?;
        let optimizer = guest.client.get_vm(VM).await?.optimizer;
        let optimizer = optimizer.unwrap_or_default();
        guest.finish().await?;

        for (reason, (count, one)) in &total.reasons {
            say(&format!("no jump {count:>6} {reason}: {one}"));
        }
        check!(
            total.registered * 2 > functions,
            "only {} of {functions} functions can be probed",
            total.registered
        );
        check!(
            total.jumps * 100 >= total.registered * MOST,
            "only {} of {} are jumps: {:?}",
            total.jumps,
            total.registered,
            total.reasons
        );
        check!(total.hit > 500, "only {} functions were hit", total.hit);
        pass_with(format!(
            "{} of {functions} functions probed, {} of them jumps ({:.2} %) in {} batches that stopped \
             the guest for {} ms in all; {} were hit, {} hits of jumps, {} missed, {} exits at \
             tripwires; the others stay breakpoints: {}; {by_kernel} bytes changed by the kernel itself",
            total.registered,
            total.jumps,
            total.jumps as f64 * 100.0 / total.registered.max(1) as f64,
            optimizer.batches,
            optimizer.stopped_ns / 1_000_000,
            total.hit,
            total.hits,
            total.missed,
            total.trips,
            total.told(),
        ))
    })
}

/// What the batches came to.
#[derive(Debug, Default)]
struct Totals {
    registered: usize,
    jumps: usize,
    /// What follows is of jumps only.
    hit: usize,
    hits: u64,
    missed: u64,
    trips: u64,
    /// Why the others are none: how many, and the reason of one.
    reasons: BTreeMap<String, (usize, String)>,
}

impl Totals {
    /// Takes over what probes came to between two lists of them.
    fn add(
        &mut self,
        settled: &[Probe],
        after: &[Probe],
        start: u64,
        text: &[u8],
    ) -> Result<(), Failure> {
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
                let why = probe.optimization.clone().unwrap_or_default();
                let entry = self.reasons.entry(why.reason_kind);
                let told = format!("{}: {}", probe.name, why.reason);
                entry.or_insert((0, told)).0 += 1;
                continue;
            }
            self.jumps += 1;
            self.hit += usize::from(probe.hits > before.hits);
            self.hits += probe.hits - before.hits;
            self.missed += probe.missed - before.missed;
            let exits = probe.exits - before.exits;
            let offset = (probe.address - start) as usize;
            let bytes = text.get(offset..offset + LONGEST).unwrap_or_default();
            let first = code::decode(probe.address, bytes);
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

    fn told(&self) -> String {
        let reasons = self.reasons.iter();
        let reasons: Vec<String> = reasons
            .map(|(kind, (count, _))| format!("{kind} {count}"))
            .collect();
        reasons.join(", ")
    }
}
