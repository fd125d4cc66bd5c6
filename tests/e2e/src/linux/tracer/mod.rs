//! The tracer beside the guest's own: the same definitions, the same hits, the same values.

mod definitions;
pub mod filters;
pub mod pointers;
pub mod selftests;
pub mod stacks;
pub mod stacks_followed;

use std::collections::BTreeMap;
use std::sync::Arc;

use definitions::Definition;

use vmprobe_client::v1::probe::Kind;
use vmprobe_client::v1::{Event, Probe};
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

/// How often the guest opens, reads and closes a file.
const CALLS: usize = 3;

fn beside(cx: &Context, kernel: &'static str, jump: bool) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, kernel, 1).await?;
        guest.client.set_optimization(VM, jump).await?;
        let all = definitions::all(kernel == files::BZIMAGE_6_12);
        let all: Vec<Definition> = all.collect();
        // A jump has room for so many values; breakpoints of one place have it for all.
        let at_once = if jump { 1 } else { all.len() };
        let (mut jumping, mut values) = (0, 0);
        for some in all.chunks(at_once) {
            let compared = compare(&mut guest, some, jump).await?;
            jumping += compared.0;
            values += compared.1;
        }
        guest.finish().await?;
        let how = match jump {
            true => format!("{jumping} of {} as jumps", all.len()),
            false => "as breakpoints".to_owned(),
        };
        pass_with(format!("{} definitions, {how}, {values} values", all.len()))
    })
}

/// Has ours and the guest's see the same calls. How many of ours were jumps, and how many values were the same.
async fn compare(
    guest: &mut Guest,
    definitions: &[Definition],
    jump: bool,
) -> Result<(usize, usize), Failure> {
    let mut stream = guest.client.events(VM, Vec::new()).await?;
    let texts: Vec<&str> = definitions.iter().map(|it| it.ours).collect();
    let probes = guest.probes(&texts).await?;
    let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
    let mut jumping = 0;
    if jump {
        let settled = jumps::settle(guest, &names).await?.probes;
        jumping = settled.iter().filter(|probe| jumps::is_jump(probe)).count();
        for (probe, definition) in settled.iter().zip(definitions) {
            check_eq!(
                jumps::is_jump(probe),
                definition.may_jump,
                "{} as a jump: {:?}",
                definition.ours,
                probe.optimization
            );
        }
    }
    let theirs = definitions.iter().map(|it| it.theirs.replace(' ', ","));
    let theirs: Vec<String> = theirs.collect();
    let report = guest
        .work(&format!("define at={}", theirs.join(";")))
        .await?;
    let refused = report["refused"].as_array();
    check!(
        refused.is_some_and(Vec::is_empty),
        "the kernel has refused {}",
        report["refused"]
    );
    guest.work(&format!("files count={CALLS}")).await?;
    let report = guest.work("trace").await?;
    let removed = guest.remove(&names).await?;
    let hits = removed.iter().map(|probe| probe.hits).sum();
    for probe in &removed {
        check!(
            probe.hits >= CALLS as u64,
            "{} was hit too rarely",
            probe.name
        );
        // The guest reads its console when they are removed.
        let may_miss = u64::from(probe.symbol == "vfs_read" && is_return(probe));
        check!(probe.missed <= may_miss, "missed hits of {probe:?}");
    }
    let (ours, lost) = events::next(&mut stream, hits).await?;
    check_eq!(lost, 0, "lost events");
    let lines = report["lines"].as_array();
    let lines = lines.ok_or_else(|| wrong!("no lines in {report}"))?;
    let theirs = by_event(lines.iter().filter_map(|line| line.as_str()));
    let ours = by_event(text(&removed, &ours)?.lines());
    let mut values = 0;
    for definition in definitions {
        let name = definition.name();
        let of = |side: &BTreeMap<String, Vec<String>>| side.get(name).cloned().unwrap_or_default();
        let (ours, theirs) = (of(&ours), of(&theirs));
        check!(
            theirs.len() >= CALLS,
            "the guest's {name} was hit {} times",
            theirs.len()
        );
        // Ours were there before the guest's, and longer.
        let same = ours.windows(theirs.len()).any(|ours| ours == theirs);
        check!(
            same,
            "of `{}` the guest tells {theirs:#?}, and ours end with {:#?}",
            definition.ours,
            ours.iter().rev().take(theirs.len()).collect::<Vec<_>>()
        );
        values += definition.values() * theirs.len();
    }
    Ok((jumping, values))
}

fn is_return(probe: &Probe) -> bool {
    matches!(probe.kind, Some(Kind::ReturnProbe(_)))
}

/// The events in ftrace's form.
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
