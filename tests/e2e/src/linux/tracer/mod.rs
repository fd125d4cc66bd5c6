//! The tracer beside the guest's own: the same definitions, the same hits, the same values.

pub mod by_value;
mod definitions;
pub mod filters;
pub mod large;
pub mod modules;
pub mod pointers;
pub mod selftests;
pub mod stacks;
pub mod stacks_copied;
pub mod stacks_followed;
mod tables;
pub mod verdicts;

use std::collections::BTreeMap;
use std::sync::Arc;

use definitions::{Definition, Likeness};

use vmprobe_client::v1::probe::Kind;
use vmprobe_client::v1::{Event, Optimization, Probe};
use vmprobe_trace_formats as formats;
use vmprobe_trace_formats::Writer;

use super::guest::{Guest, VM, files};
use super::jumps;
use crate::context::Context;
use crate::events;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "breakpoints_of_6_12_tell_the_same_values_as_the_guest_s_own_events",
        ids: &["TR01", "TR02", "TR03", "KP21"],
        needs: Needs::Linux,
        run: |cx| beside(cx, files::BZIMAGE_6_12, false),
    },
    Test {
        name: "jumps_of_6_12_tell_the_same_values_as_the_guest_s_own_events",
        ids: &["TR01", "TR02", "TR03", "KP21"],
        needs: Needs::Linux,
        run: |cx| beside(cx, files::BZIMAGE_6_12, true),
    },
    Test {
        name: "jumps_of_6_1_tell_the_same_values_as_the_guest_s_own_events",
        ids: &["TR01", "TR02", "TR03"],
        needs: Needs::Linux,
        run: |cx| beside(cx, files::BZIMAGE_6_1, true),
    },
];

/// What the guest does: opens, reads and closes a file twice; opens by bad and long names; makes a process.
const WORKLOADS: [&str; 3] = ["files count=2", "names count=1", "forks count=1"];
/// Bytes of a line that the guest's console takes at once.
const LINE: usize = 3000;
/// Differences that are shown.
const TOLD: usize = 12;

fn beside(cx: &Context, kernel: &'static str, jump: bool) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 1).await?;
        guest.client.set_optimization(VM, jump).await?;
        let all = definitions::all(kernel == files::BZIMAGE_6_12);
        // A jump has room for the values of one definition, breakpoints of one place for those of all.
        let parts = match jump {
            true => definitions::apart(all),
            false => vec![definitions::at_ends(all)],
        };
        let count: usize = parts.iter().map(Vec::len).sum();
        let mut seen = Seen::default();
        for part in &parts {
            seen.compare(&mut guest, part, jump).await?;
        }
        guest.finish().await?;
        check!(
            seen.different.is_empty(),
            "{} differences: {:#?}",
            seen.different.len(),
            seen.different.iter().take(TOLD).collect::<Vec<_>>()
        );
        let how = match jump {
            true => format!("{} of {count} as jumps", seen.jumping),
            false => "as breakpoints".to_owned(),
        };
        let (hits, values, faults) = (seen.hits, seen.values, seen.faults);
        check!(
            seen.odd.len() <= ODD,
            "the guest's own events tell odd values: {:#?}",
            seen.odd
        );
        pass_with(format!(
            "{count} definitions, {how}, {values} values of {hits} hits, {faults} of them numbers that can't be \
             read; {} of the guest's own have odd values: {:?}",
            seen.odd.len(),
            seen.odd
        ))
    })
}

/// The guest's own events that may have, of constant memory, values that differ from ours and from the guest's other
/// events. Seen once in some twenty runs: two bytes of 832 were 0.
const ODD: usize = 1;

/// What was compared.
#[derive(Default)]
struct Seen {
    /// Definitions that were jumps.
    jumping: usize,
    /// Hits, and values in them.
    hits: usize,
    values: usize,
    /// Numbers that could not be read.
    faults: usize,
    /// Hits with a value that is always the same in ours and in all others of the guest's.
    odd: Vec<String>,
    /// The differences.
    different: Vec<String>,
}

impl Seen {
    /// Has our probes and the guest's events see the same calls, and compares them.
    async fn compare(
        &mut self,
        guest: &mut Guest,
        definitions: &[Definition],
        jump: bool,
    ) -> Result<(), Failure> {
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        let texts: Vec<&str> = definitions.iter().map(|it| it.ours.as_str()).collect();
        let probes = guest.probes(&texts).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        if jump {
            let settled = jumps::settle(guest, &names).await?.probes;
            for (probe, definition) in settled.iter().zip(definitions) {
                let told = probe.optimization.as_ref();
                let why = told.map(Optimization::reason_kind).unwrap_or_default();
                let is_right = match definition.no_jump {
                    Some(reason) => why == reason,
                    None => jumps::is_jump(probe),
                };
                if !is_right {
                    let told = &probe.optimization;
                    self.different
                        .push(format!("{} as a jump: {told:?}", definition.ours));
                }
                self.jumping += usize::from(jumps::is_jump(probe));
            }
        }
        define(guest, definitions).await?;
        for workload in WORKLOADS {
            guest.work(workload).await?;
        }
        let report = guest.work("trace").await?;
        let removed = guest.remove(&names).await?;
        let hits = removed.iter().map(|probe| probe.hits).sum();
        // The guest reads its console for the next line when the probes are removed: its one CPU may have written half
        // of a jump's record, and calls of the functions that read may be under way.
        let mut half_written = u64::from(jump);
        for probe in &removed {
            let reads = matches!(&*probe.symbol, "vfs_read" | "ksys_read");
            let under_way = u64::from(reads && is_return(probe));
            let more = probe.missed.saturating_sub(under_way);
            check!(more <= half_written, "missed hits of {probe:?}");
            half_written -= more;
        }
        let (ours, lost) = events::next(&mut stream, hits).await?;
        check_eq!(lost, 0, "lost events");
        let lines = report["lines"].as_array();
        let lines = lines.ok_or_else(|| wrong!("no lines in {report}"))?;
        let theirs = by_event(lines.iter().filter_map(|line| line.as_str()));
        let ours = by_event(text(&removed, &ours)?.lines());
        for definition in definitions {
            let of = |side: &BTreeMap<String, Vec<String>>| {
                side.get(definition.name()).cloned().unwrap_or_default()
            };
            self.values_of(definition, &of(&ours), &of(&theirs));
        }
        Ok(())
    }

    /// Compares the values of one definition.
    fn values_of(&mut self, definition: &Definition, ours: &[String], theirs: &[String]) {
        let compared = |ours: &[String]| -> Vec<(String, Likeness)> {
            let each = ours.iter().zip(theirs);
            let each = each.map(|(ours, theirs)| {
                let told = format!("ours {ours}, the guest's {theirs}");
                (told, definitions::compare(ours, theirs))
            });
            each.collect()
        };
        let differ = |it: &Vec<(String, Likeness)>| {
            let differ = it.iter().filter(|(_, like)| *like == Likeness::Different);
            differ.count()
        };
        // Our probes were registered before the guest's and removed after them.
        let windows = ours.windows(theirs.len().max(1)).map(compared);
        let Some(nearest) = windows.min_by_key(differ).filter(|_| !theirs.is_empty()) else {
            let (ours, theirs) = (ours.len(), theirs.len());
            self.different.push(format!(
                "`{}` has {ours} hits, and the guest's {theirs}",
                definition.ours
            ));
            return;
        };
        // If memory is constant, both have the same values at each hit.
        let is_constant = ours.windows(2).all(|two| two[0] == two[1])
            && nearest.iter().any(|(_, like)| *like != Likeness::Different);
        for (told, likeness) in nearest {
            match likeness {
                Likeness::Same { faults } => self.faults += faults,
                Likeness::Different if is_constant => {
                    self.odd.push(format!("{}: {told}", definition.ours));
                }
                Likeness::Different => {
                    self.different.push(format!("{}: {told}", definition.ours));
                }
            }
        }
        self.hits += theirs.len();
        self.values += definition.values() * theirs.len();
    }
}

/// Has the guest define its own events by the definitions.
async fn define(guest: &mut Guest, definitions: &[Definition]) -> Result<(), Failure> {
    let mut line = String::new();
    let theirs = definitions.iter().map(|it| it.theirs.replace(' ', ","));
    let mut theirs = theirs.peekable();
    while let Some(text) = theirs.next() {
        line.push_str(&text);
        if theirs
            .peek()
            .is_some_and(|next| line.len() + next.len() < LINE)
        {
            line.push(';');
            continue;
        }
        let report = guest.work(&format!("define at={line}")).await?;
        let refused = &report["refused"];
        check!(
            refused.as_array().is_some_and(Vec::is_empty),
            "the kernel has refused {refused:#}"
        );
        line.clear();
    }
    Ok(())
}

fn is_return(probe: &Probe) -> bool {
    matches!(probe.kind, Some(Kind::ReturnProbe(_)))
}

/// Formats the events in ftrace's form.
fn text(probes: &[Probe], events: &[Event]) -> Result<String, Failure> {
    let guest = formats::Guest {
        tsc_hz: 0,
        cpus: 1,
        symbols: Arc::new(|_: u64| None),
    };
    let failed = |error| wrong!("the text of events: {error}");
    let mut text = Vec::new();
    let mut writer =
        formats::Ftrace::new(&mut text, &guest, formats::Header::None).map_err(failed)?;
    writer.begin(probes).map_err(failed)?;
    for event in events {
        writer.event(event).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    drop(writer);
    String::from_utf8(text).map_err(|error| wrong!("{error}"))
}

/// The values in lines of a trace, `TASK-PID [CPU] FLAGS TIME: EVENT: (PLACE) VALUES`, by the event.
fn by_event<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        let Some((head, values)) = line.split_once(") ") else {
            continue;
        };
        let Some((head, _place)) = head.split_once(": (") else {
            continue;
        };
        let task = head.trim_start().split(' ').next().unwrap_or_default();
        let event = head.rsplit(' ').next().unwrap_or_default();
        let values = format!("{task} {values}");
        found.entry(event.to_owned()).or_default().push(values);
    }
    found
}
