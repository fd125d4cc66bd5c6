//! Every hundredth instruction of the kernel: a jump if it can be one, and otherwise a reason why not.

use std::collections::{BTreeMap, BTreeSet};

use vmprobe_client::v1::{Capture, Probe};
use vmprobe_client::words;

use super::{is_jump, settle, settle_paused};
use crate::context::Context;
use crate::linux::code::decode;
use crate::linux::documented;
use crate::linux::functions::{self, Kinds};
use crate::linux::guest::{Guest, VM, files};
use crate::linux::instructions::{self, Spot};
use crate::linux::no_jump::Reasons;
use crate::linux::offer::{Offered, offer, place};
use crate::linux::phases::Phases;
use crate::linux::text::Text;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "every_hundredth_instruction_of_6_1_is_a_jump_or_says_why_not",
        ids: &["JP09", "JP10", "BN08"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_1, "6.1"),
    },
    Test {
        name: "every_hundredth_instruction_of_6_12_is_a_jump_or_says_why_not",
        ids: &["JP09", "JP10", "BN08"],
        needs: Needs::Linux,
        run: |cx| sweep(cx, files::BZIMAGE_6_12, "6.12"),
    },
];

const VCPUS: u32 = 4;
const EVERY: usize = 100;
/// Probes in a batch.
const BATCH: usize = 4000;
/// Size of an instruction at most.
const LONGEST: usize = 15;
/// Bytes of a jump: an instruction of at least this length is the only one in its region.
const JUMP_LEN: usize = 5;
/// A function that only this system call calls, and calls of it on each vCPU at a time.
const CONTROL: &str = "__x64_sys_umask";
const CALL: &str = "umask";
const CALLS: u64 = 50;
/// Standard deviations of the sample by which its share may be off.
const DEVIATIONS: f64 = 4.0;

fn sweep(cx: &Context, kernel: &'static str, version: &str) -> TestResult {
    cx.block_on(async {
        let first = (cx.seed % EVERY as u64) as usize;
        let calls = format!("threads syscall={CALL} count={CALLS}");
        let mut guest = Guest::ready(cx, kernel, VCPUS).await?;
        // Once without probes, so that the kernel patches first what it patches at a first use.
        guest.work("sweep count=1").await?;
        guest.work(&calls).await?;
        let mut phases = Phases::default();
        let text = phases.time("text", Text::of(&guest)).await?;
        let functions = phases
            .time("functions", functions::all(&mut guest, &text))
            .await?;
        let (all, mut spots) = instructions::every(&functions, &text, EVERY, first);
        // Both jumps would be in one region.
        let control = functions.iter().find(|it| it.name == CONTROL);
        let control = control.ok_or_else(|| wrong!("no function {CONTROL}"))?;
        spots.retain(|spot| !(control.start..control.end).contains(&spot.at));
        guest.probe(&format!("control={CONTROL}")).await?;

        let mut total = Totals::new(&text);
        let (unfit, free): (Vec<_>, Vec<_>) =
            spots.iter().partition(|spot| !spot.refusals.is_empty());
        for spot in unfit {
            let place = [format!("{:#x}", spot.at)];
            let offered = phases.time("refusals", offer(&guest, &place)).await?;
            total.offered(&[spot], &offered)?;
        }
        // With breakpoints there the guest makes no headway in the lab until they are jumps.
        let (returns, free): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|spot| spot.is_return_thunk);
        let batches = free.chunks(BATCH).map(|batch| (batch, true));
        let mut called = 0;
        for (batch, works) in batches.chain([(&*returns, false)]) {
            // In turn, one records all registers and the next only counts.
            let options = ["", " count"].iter().cycle();
            let texts = batch.iter().zip(options);
            let texts: Vec<String> = texts
                .map(|(spot, options)| format!("{:#x}{options}", spot.at))
                .collect();
            let offered = phases.time("offers", offer(&guest, &texts)).await?;
            total.offered(batch, &offered)?;
            // The first batch becomes jumps while the guest executes it.
            let settled = match total.jumps == 0 {
                true => phases.time("first jumps", settle(&guest, &[])).await?,
                false => phases.time("jumps", settle_paused(&guest)).await?,
            };
            let settled = settled.probes;
            if works {
                let work = guest.work("sweep count=1");
                phases.time("work", work).await?;
                guest.work(&calls).await?;
                called += CALLS * u64::from(VCPUS);
            }
            let after = guest.client.list_probes(VM).await?;
            total.settled(&settled, &after)?;
            let ids = offered.ids();
            let removing = guest.client.unregister_probes(VM, ids, Vec::new());
            phases.time("removals", removing).await?;
        }
        let control = guest.remove(&["control"]).await?;
        check_eq!(
            control[0].hits + control[0].missed,
            called,
            "hits and missed hits of {CONTROL}"
        );
        let switched = phases.time("text", text.untouched(&guest)).await?;
        guest.work("sweep count=1").await?;
        guest.finish().await?;

        total.reasons.show();
        let share = total.share(version)?;
        check!(total.hit > 200, "only {} jumps were hit", total.hit);
        pass_with(format!(
            "{} of {all} instructions, every {EVERY}th from {first} on: {} probed, {} refused ({}); {} of them \
             jumps, {share}; the others stay breakpoints: {}; {} jumps were hit, {} hits, {} missed, {} exits \
             at tripwires; {called} calls counted exactly; {switched} jump labels switched by the kernel \
             itself; {phases}",
            spots.len(),
            total.probed,
            total.refused.total(),
            total.refused,
            total.jumps,
            total.reasons,
            total.hit,
            total.hits,
            total.missed,
            total.trips,
        ))
    })
}

/// The results of all batches.
struct Totals<'a> {
    text: &'a Text,
    /// The documented kinds of reasons.
    known: BTreeSet<&'a str>,
    probed: usize,
    refused: Kinds,
    jumps: usize,
    /// Why the other probes are no jumps.
    reasons: Reasons,
    /// The fields from here on are of jumps only.
    hit: usize,
    hits: u64,
    missed: u64,
    trips: u64,
}

impl<'a> Totals<'a> {
    fn new(text: &'a Text) -> Self {
        let entries = text.blacklist.iter();
        let listed = entries.map(|entry| words::blacklist_kind(entry.kind()));
        Self {
            text,
            known: documented::reasons(listed),
            probed: 0,
            refused: Kinds::default(),
            jumps: 0,
            reasons: Reasons::default(),
            hit: 0,
            hits: 0,
            missed: 0,
            trips: 0,
        }
    }

    /// Takes over the outcome of a batch. Fails if an instruction took a probe although it has to be refused, or if it
    /// is refused for another reason.
    fn offered(&mut self, batch: &[&Spot], offered: &Offered) -> Result<(), Failure> {
        let spots: BTreeMap<String, &Spot> = batch
            .iter()
            .map(|spot| (format!("{:#x}", spot.at), *spot))
            .collect();
        let spot = |text: &str| spots.get(place(text)).copied();
        for (text, probe) in &offered.taken {
            let spot = spot(text).ok_or_else(|| wrong!("{text} was not offered"))?;
            check_eq!(probe.address, spot.at, "the address of {text}");
            check!(
                spot.refusals.is_empty(),
                "{text} took a probe, against {:?}: {probe:?}",
                spot.refusals
            );
            self.probed += 1;
        }
        for (text, message) in &offered.refused {
            let spot = spot(text).ok_or_else(|| wrong!("{text} was not offered"))?;
            let found = spot.refusals.iter().find(|words| message.contains(*words));
            let words = found.ok_or_else(|| {
                wrong!(
                    "{text} was refused for none of {:?}: {message}",
                    spot.refusals
                )
            })?;
            self.refused.add(kind(words));
        }
        check_eq!(
            offered.taken.len() + offered.refused.len(),
            batch.len(),
            "instructions that took a probe or were refused"
        );
        Ok(())
    }

    /// Takes over the states and counts of probes, between two lists of them.
    fn settled(&mut self, settled: &[Probe], after: &[Probe]) -> Result<(), Failure> {
        let settled: BTreeMap<u64, &Probe> =
            settled.iter().map(|probe| (probe.id, probe)).collect();
        for probe in after.iter().filter(|probe| probe.name != "control") {
            let before = settled.get(&probe.id);
            let before = before.ok_or_else(|| wrong!("not settled: {probe:?}"))?;
            if !is_jump(probe) {
                check!(
                    is_jump(before) || probe.hits <= probe.exits,
                    "a breakpoint's hits cost an exit each: {probe:?}"
                );
                let why = probe.optimization.clone().unwrap_or_default();
                check!(
                    self.known.contains(words::no_jump(&why)) && !why.reason.is_empty(),
                    "no reason that the documents have: {probe:?}"
                );
                self.reasons.add(probe);
                continue;
            }
            check!(
                is_jump(before),
                "a jump that had settled as none: {probe:?}"
            );
            let trips = probe.trips - before.trips;
            check_eq!(
                probe.exits - before.exits,
                trips,
                "exits of hits of {probe:?}"
            );
            let first = decode(probe.address, self.text.at(probe.address, LONGEST));
            let has_middle = first.first().is_some_and(|first| first.len() < JUMP_LEN);
            check!(
                trips == 0 || has_middle,
                "nobody can be in the middle: {probe:?}"
            );
            self.jumps += 1;
            let (hits, missed) = (probe.hits - before.hits, probe.missed - before.missed);
            if probe.missed > 0 {
                let options = probe.options.clone().unwrap_or_default();
                let counts = options.capture() == Capture::Count;
                check!(
                    !counts,
                    "a probe that only counts has missed hits: {probe:?}"
                );
            }
            self.hit += usize::from(hits + missed > 0);
            self.hits += hits;
            self.missed += missed;
            self.trips += trips;
        }
        Ok(())
    }

    /// Returns the share of jumps among the probes. Fails if it isn't the documented one.
    fn share(&self, version: &str) -> Result<String, Failure> {
        let documented = documented::instructions_that_can_be_jumps(version);
        let documented = documented.ok_or_else(|| wrong!("no documented share for {version}"))?;
        let (jumps, probed) = (self.jumps as f64, self.probed as f64);
        let share = jumps * 100.0 / probed;
        let deviation = (documented * (100.0 - documented) / probed).sqrt();
        let told =
            format!("{share:.2} % (documented {documented} %, standard deviation {deviation:.2})");
        let is_documented = (share - documented).abs() <= DEVIATIONS * deviation;
        check!(
            is_documented,
            "{jumps} of {probed} are jumps, {told}: {:?}",
            self.reasons
        );
        Ok(told)
    }
}

/// The kind of a refusal, from its words.
fn kind(words: &str) -> &str {
    let listed = words
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'));
    match listed {
        Some((kind, _)) => kind,
        None if words.starts_with("breakpoint") => "behind an int3",
        None if words.starts_with("is on") => "function's beginning",
        None if words.starts_with("by which") => "int3 or ud",
        None => "change of mode",
    }
}
