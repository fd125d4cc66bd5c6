//! The whole kernel: a probe on every function that can have one, and every byte of one function.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::v1::{BlacklistEntry, Probe, Strategy};

use super::code::decode;
use super::functions::{self, Account, Function};
use super::guest::{Guest, VM, files};
use super::offer::offer;
use super::phases::Phases;
use super::text::Text;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_function_of_6_1_can_be_probed_while_the_guest_works",
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_1),
    },
    Test {
        name: "every_function_of_6_12_can_be_probed_while_the_guest_works",
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "of_all_bytes_of_a_function_only_starts_of_instructions_take_a_probe",
        ids: &["KP01", "KP02"],
        needs: Needs::Linux,
        run: boundaries,
    },
];

/// Probes in a batch of the sweep.
const BATCH: usize = 1000;

/// Size of an instruction at most.
const LONGEST_INSTRUCTION: usize = 15;

/// Probes every function.
fn sweep(cx: &Context, kernel: &'static str) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, kernel, 2).await?;
        // Once without probes, so that the kernel patches first what it patches at a first use.
        guest.work("sweep count=1").await?;
        let mut phases = Phases::default();
        let text = phases.time("text", Text::of(&guest)).await?;
        let functions = phases
            .time("functions", functions::all(&mut guest, &text))
            .await?;
        let (listed, free): (Vec<&Function>, Vec<_>) = functions
            .iter()
            .partition(|function| function.listed(&text).next().is_some());
        let (returns, free): (Vec<_>, Vec<_>) = free
            .into_iter()
            .partition(|function| function.is_return_thunk());
        let mut account = Account::new(&functions, &text);
        // Each function of the blacklist must be refused.
        for function in listed {
            let place = [function.place.clone()];
            let offered = phases.time("refusals", offer(&guest, &place)).await?;
            check!(
                offered.taken.is_empty(),
                "{} is in the list, and took a probe",
                function.place
            );
            account.add(&offered)?;
        }
        let mut total = Totals::default();
        let batches = free.chunks(BATCH).map(|batch| (batch, true));
        for (batch, works) in batches.chain([(&*returns, false)]) {
            let places: Vec<String> = batch.iter().map(|it| it.place.clone()).collect();
            let offered = phases.time("offers", offer(&guest, &places)).await?;
            account.add(&offered)?;
            if works {
                let work = guest.work("sweep count=1");
                phases.time("work", work).await?;
            }
            let ids = offered.ids();
            let removing = guest.client.unregister_probes(VM, ids, Vec::new());
            let removed = phases.time("removals", removing).await?;
            total.add(&removed);
        }
        let switched = phases.time("text", text.untouched(&guest)).await?;
        guest.work("sweep count=1").await?;
        guest.finish().await?;
        account.check(functions.len())?;
        check!(total.hit > 500, "only {} functions were hit", total.hit);
        pass_with(format!(
            "{} functions: {account}; {}; {switched} jump labels switched by the kernel itself; {phases}",
            functions.len(),
            total.remark(account.probed)
        ))
    })
}

/// The results of all batches.
#[derive(Debug, Default)]
struct Totals {
    hit: usize,
    hits: u64,
    exits: u64,
    missed: u64,
    strategies: BTreeMap<&'static str, usize>,
}

impl Totals {
    fn add(&mut self, removed: &[Probe]) {
        for probe in removed {
            self.hit += usize::from(probe.hits > 0);
            self.hits += probe.hits;
            self.exits += probe.exits;
            self.missed += probe.missed;
            let name = match probe.strategy() {
                Strategy::Emulate => "emulate",
                Strategy::Boost => "boost",
                Strategy::Step => "step",
                Strategy::Watch | Strategy::Unspecified => "?",
            };
            *self.strategies.entry(name).or_default() += 1;
        }
    }

    fn remark(&self, probed: usize) -> String {
        let share = |count: usize| count as f64 * 100.0 / probed.max(1) as f64;
        let strategies: Vec<String> = self
            .strategies
            .iter()
            .map(|(name, count)| format!("{name} {:.2} %", share(*count)))
            .collect();
        format!(
            "{}; {} were hit, {} hits, {:.4} exits a hit, {} missed",
            strategies.join(", "),
            self.hit,
            self.hits,
            self.exits as f64 / self.hits.max(1) as f64,
            self.missed,
        )
    }
}

/// Returns the blacklist, or its entries that cover symbols of this pattern.
///
/// # Errors
/// Those of the call.
pub async fn blacklist(guest: &Guest, pattern: &str) -> Result<Vec<BlacklistEntry>, Failure> {
    let mut stream = guest.client.blacklist(VM, pattern).await?;
    let mut all = Vec::new();
    while let Some(entries) = stream.next().await? {
        all.extend(entries);
    }
    Ok(all)
}

/// Returns those of the places that take a probe. No probe stays.
///
/// # Errors
/// If the server fails otherwise than by refusing one.
pub async fn accepted(guest: &Guest, places: &[String]) -> Result<Vec<String>, Failure> {
    let offered = offer(guest, places).await?;
    let ids = offered.ids();
    guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let taken = offered.taken.into_iter();
    Ok(taken.map(|(place, _)| place).collect())
}

/// A function that the guest calls all the time.
const HOT: &str = "vfs_read";
/// Its bytes that are tried.
const BYTES: u64 = 256;

fn boundaries(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::breakpoints(cx, files::BZIMAGE_6_1, 2).await?;
        let start = guest.symbol(HOT).await?;
        let bytes = guest
            .memory(start, BYTES as usize + LONGEST_INSTRUCTION)
            .await?;
        let starts: BTreeSet<u64> = decode(start, &bytes)
            .iter()
            .map(iced_x86::Instruction::ip)
            .collect();
        let listed = blacklist(&guest, HOT).await?;
        let is_listed = |at| listed.iter().any(|it| (it.start..it.end).contains(&at));
        let (mut accepted, mut hits) = (0, 0);
        for at in start..start + BYTES {
            let offset = at - start;
            let offered = offer(&guest, &[format!("{at:#x}")]).await?;
            if let [(_, message)] = &*offered.refused {
                let inside = message.contains("inside");
                check!(
                    inside != starts.contains(&at) || is_listed(at),
                    "{HOT}+{offset:#x}: {message}"
                );
                continue;
            }
            let probes = &offered.taken;
            check!(starts.contains(&at), "{HOT}+{offset:#x} took {probes:?}");
            check!(!is_listed(at), "{at:#x} is on the blacklist: {probes:?}");
            accepted += 1;
            guest.work("files count=3").await?;
            let ids = offered.ids();
            let removed = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
            hits += removed.iter().map(|probe| probe.hits).sum::<u64>();
        }
        check!(
            guest.memory(start, bytes.len()).await? == bytes,
            "{HOT} isn't what it was"
        );
        check!(accepted > 20, "only {accepted} places were accepted");
        check!(hits > 0, "none of them was hit");
        guest.finish().await?;
        pass_with(format!(
            "{accepted} of {} instructions, {hits} hits",
            starts.range(..start + BYTES).count()
        ))
    })
}
