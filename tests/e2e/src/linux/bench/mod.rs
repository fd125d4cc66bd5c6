//! Figures of a Linux guest: exits a hit, and how long the vCPUs stand still for a batch. They are counted or reported
//! by the server. What depends on the speed of exits isn't measured here.

mod boot;
mod jumps;
mod kvm_trace;
mod workload;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vmprobe_client::v1::{Exits, Probe, Strategy};

use super::guest::{Guest, VM, files, specs};
use super::text::Text;
use super::{code, functions, whole};
use crate::context::{Context, Place};
use crate::say;
use crate::test::{Failure, Outcome, check, pass, wrong};

/// A part of what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Exits of hits.
    Exits,
    /// Stops for batches.
    Batches,
    /// Jumps beside the guest's own probes.
    Jumps,
    /// A workload with files and processes.
    Workload,
    /// Boots beside QEMU's.
    Boot,
}

/// One figure of `target/bench/report.json`.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub id: &'static str,
    pub value: f64,
    pub unit: &'static str,
    #[serde(rename = "where")]
    pub place: &'static str,
    pub how: String,
    pub note: String,
}

/// Functions of which every instruction is probed: what opening, reading and closing a file calls.
const FUNCTIONS: [&str; 10] = [
    "do_sys_openat2",
    "getname_flags",
    "path_openat",
    "do_filp_open",
    "vfs_open",
    "vfs_read",
    "ksys_read",
    "filp_close",
    "fput",
    "kmem_cache_alloc",
];
/// Bytes of each function that are decoded.
const BYTES: usize = 0x180;
/// The work of the guest while exits are counted.
const WORK: &str = "files count=20";

/// Probes of a batch, and how often each batch is registered and removed.
const BATCHES: [(usize, usize); 4] = [(1, 9), (100, 9), (1000, 5), (10_000, 3)];
/// Candidates are tried in parts of this size: each refused candidate costs several registrations of its part, which is
/// halved until the refused one is alone.
const PART: usize = 500;

/// Measures all, or one part, and adds it to a file, one line of JSON a figure.
///
/// # Errors
/// If something can't be measured.
pub fn run(cx: &Context, results: Option<PathBuf>, only: Option<Part>) -> Result<bool, Failure> {
    let is_wanted = |part| only.is_none_or(|only| only == part);
    let place = match cx.place {
        Place::Host => "host",
        Place::LabAmd | Place::LabIntel => "lab",
    };
    let mut figures = Vec::new();
    let _: Outcome = cx.block_on(async {
        if is_wanted(Part::Exits) {
            exits(cx, place, &mut figures).await?;
        }
        if is_wanted(Part::Batches) {
            batches(cx, place, &mut figures).await?;
        }
        if is_wanted(Part::Jumps) {
            jumps::hits(cx, place, &mut figures).await?;
            jumps::batches(cx, place, &mut figures).await?;
        }
        if is_wanted(Part::Workload) {
            workload::measure(cx, place, &mut figures).await?;
        }
        if is_wanted(Part::Boot) {
            boot::measure(cx, place, &mut figures)?;
        }
        pass()
    })?;
    let mut file = match results {
        None => None,
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(file.map_err(Failure::io("open the results file"))?)
        }
    };
    for figure in &figures {
        let Figure {
            id,
            value,
            unit,
            how,
            ..
        } = figure;
        say(&format!("{id} {value} {unit}: {how}"));
        // A record of strings and a number always serializes.
        let line = serde_json::to_string(figure).unwrap_or_default();
        if let Some(file) = &mut file {
            writeln!(file, "{line}").map_err(Failure::io("write the results"))?;
        }
    }
    Ok(!figures.is_empty())
}

/// Hits and exits of some probes.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    probes: usize,
    hits: u64,
    exits: u64,
}

impl Counts {
    fn add(&mut self, probe: &Probe) {
        self.probes += usize::from(probe.hits > 0);
        self.hits += probe.hits;
        self.exits += probe.exits;
    }
}

/// Measures exits a hit, by strategy, with and without a post event, and of return probes.
async fn exits(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut guest = Guest::new(cx, files::BZIMAGE_6_1, 1).await?;
    guest.client.set_optimization(VM, false).await?;
    // Lets the kernel patch first what it patches at a first use.
    guest.work(WORK).await?;
    let mut places = Vec::new();
    for function in FUNCTIONS {
        let Ok(start) = guest.symbol(function).await else {
            continue;
        };
        let bytes = guest.memory(start, BYTES).await?;
        let instructions = code::decode(start, &bytes);
        let found: Vec<String> = instructions
            .iter()
            .map(|instruction| format!("{:#x}", instruction.ip()))
            .collect();
        places.extend(whole::accepted(&guest, &found).await?);
    }
    for (suffix, what) in [("", "pre"), (" post", "pre and post")] {
        let texts = places.iter().map(|place| format!("p {place}{suffix}"));
        let counted = work_under(&mut guest, texts.collect()).await?;
        for (strategy, name) in [
            (Strategy::Emulate, "emulate"),
            (Strategy::Boost, "boost"),
            (Strategy::Step, "step"),
        ] {
            let counts = counted.by_strategy.get(name).copied().unwrap_or_default();
            let how = format!("exits a hit, {strategy:?}, {what} events; counted by the probes");
            figures.push(counted.figure(place, how, counts));
        }
    }
    let texts = FUNCTIONS.iter().map(|function| format!("r {function}"));
    let texts: Vec<String> = texts.collect();
    let texts = whole::accepted(&guest, &texts).await?;
    let counted = work_under(&mut guest, texts).await?;
    let counts = counted.all();
    let how = "exits a followed call, return probes; counted by the probes".to_owned();
    figures.push(counted.figure(place, how, counts));
    guest.finish().await
}

/// The counts of probes while the guest worked.
#[derive(Debug)]
struct Counted {
    by_strategy: BTreeMap<&'static str, Counts>,
    /// The VM's own counters meanwhile.
    breakpoints: u64,
    steps: u64,
}

impl Counted {
    fn all(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.by_strategy.values() {
            sum.probes += counts.probes;
            sum.hits += counts.hits;
            sum.exits += counts.exits;
        }
        sum
    }

    fn figure(&self, place: &'static str, how: String, counts: Counts) -> Figure {
        let all = self.all();
        let note = format!(
            "{} hits of {} probes; check: all probes of the run together counted {} exits at {} \
             hits, the VM {} int3s and {} steps",
            counts.hits, counts.probes, all.exits, all.hits, self.breakpoints, self.steps
        );
        let note = if counts.hits == 0 {
            format!("none was hit; {note}")
        } else {
            note
        };
        Figure {
            id: "BN01",
            value: rounded(counts.exits as f64 / counts.hits.max(1) as f64),
            unit: "exits/hit",
            place,
            how,
            note,
        }
    }
}

async fn work_under(guest: &mut Guest, texts: Vec<String>) -> Result<Counted, Failure> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let before = vm_exits(guest).await?;
    let probes = guest.probes(&texts).await?;
    guest.work(WORK).await?;
    let ids = probes.iter().map(|probe| probe.id).collect();
    let probes = guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    let after = vm_exits(guest).await?;
    let mut by_strategy: BTreeMap<&'static str, Counts> = BTreeMap::new();
    for probe in &probes {
        let name = match probe.strategy() {
            Strategy::Emulate => "emulate",
            Strategy::Boost => "boost",
            Strategy::Step => "step",
            Strategy::Watch | Strategy::Unspecified => "?",
        };
        by_strategy.entry(name).or_default().add(probe);
    }
    let hit = by_strategy.values().any(|counts| counts.hits > 0);
    check!(hit, "none of {} probes was hit", probes.len());
    Ok(Counted {
        by_strategy,
        breakpoints: after.breakpoint - before.breakpoint,
        steps: after.step - before.step,
    })
}

async fn vm_exits(guest: &Guest) -> Result<Exits, Failure> {
    let vm = guest.client.get_vm(VM).await?;
    vm.exits
        .ok_or_else(|| wrong!("the server doesn't tell the VM's exits"))
}

/// Measures how long the vCPUs stand still for a batch, and how often.
async fn batches(
    cx: &Context,
    place: &'static str,
    figures: &mut Vec<Figure>,
) -> Result<(), Failure> {
    let mut guest = Guest::new(cx, files::BZIMAGE_6_1, 2).await?;
    guest.client.set_optimization(VM, false).await?;
    guest.work(WORK).await?;
    let most = BATCHES.iter().map(|(count, _)| *count).max().unwrap_or(0);
    let places = entries(&guest, most).await?;
    // One vCPU is in guest mode all the time, the other idle.
    guest.say("workload=spin").await?;

    let mut pauses = [BTreeMap::new(), BTreeMap::new()];
    for (count, rounds) in BATCHES {
        let texts = spread(&places, count);
        let mut stopped = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let batch = guest.client.register_batch(VM, specs(&texts)?).await?;
            stopped[0].push(batch.stopped);
            let ids = batch.probes.iter().map(|probe| probe.id).collect();
            let batch = guest.client.unregister_batch(VM, ids, Vec::new()).await?;
            stopped[1].push(batch.stopped);
        }
        for (pauses, mut stopped) in pauses.iter_mut().zip(stopped) {
            stopped.sort_unstable();
            pauses.insert(count, stopped);
        }
    }
    for (what, pauses) in ["register", "remove"].into_iter().zip(&pauses) {
        figures.extend(pause_figures(place, what, pauses));
    }
    figures.push(stops(&guest, place, &spread(&places, 1000)).await?);
    guest.say("").await?;
    guest.console.report("done").await?;
    guest.finish().await
}

/// Returns `count` of these places, evenly spread, so that batches of all sizes are alike in all else: in what is
/// probed, in how much of it the guest has executed, and in how far one place is from the next in memory of which
/// caches hold little.
pub fn spread(places: &[String], count: usize) -> Vec<&str> {
    let step = (places.len() / count).max(1);
    let some = places.iter().step_by(step).take(count);
    some.map(String::as_str).collect()
}

/// Returns function entries that can be probed.
///
/// # Errors
/// If there are too few.
pub async fn entries(guest: &Guest, wanted: usize) -> Result<Vec<String>, Failure> {
    let text = Text::of(guest).await?;
    let functions = functions::find(guest, &text).await?;
    let free = functions
        .iter()
        .filter(|function| function.listed(&text).next().is_none());
    let places: Vec<String> = free.map(|function| function.place.clone()).collect();
    let mut found = Vec::new();
    for part in places.chunks(PART) {
        found.extend(whole::accepted(guest, part).await?);
        if found.len() >= wanted {
            return Ok(found);
        }
    }
    Err(wrong!(
        "only {} function entries can be probed, not {wanted}",
        found.len()
    ))
}

fn pause_figures(
    place: &'static str,
    what: &str,
    pauses: &BTreeMap<usize, Vec<Duration>>,
) -> Vec<Figure> {
    let mut figures: Vec<Figure> = Vec::new();
    let mut last: Option<(usize, f64)> = None;
    for (&count, times) in pauses {
        let micros =
            |time: Option<&Duration>| time.map_or(0.0, |time| time.as_nanos() as f64 / 1e3);
        let middle = micros(times.get(times.len() / 2));
        let mut note = format!(
            "{:.0} to {:.0} us in {} rounds",
            micros(times.first()),
            micros(times.last()),
            times.len()
        );
        if let Some((fewer, before)) = last {
            let (probes, time) = (count as f64 / fewer as f64, middle / before.max(0.001));
            let verdict = if time <= probes { "kept" } else { "missed" };
            note += &format!(
                "; {probes:.0} times the probes of the figure before take {time:.1} times as long \
                 (limit: no more than linearly, {verdict})"
            );
        }
        figures.push(Figure {
            id: "BN10",
            value: rounded(middle),
            unit: "us",
            place,
            how: format!(
                "stop of 2 vCPUs to {what} {count} function entries in a batch, as the server \
                 tells; median"
            ),
            note,
        });
        last = Some((count, middle));
    }
    figures
}

/// Measures the stops for one batch: how many vCPUs were interrupted, against one pause by hand.
async fn stops(guest: &Guest, place: &'static str, places: &[&str]) -> Result<Figure, Failure> {
    const ROUNDS: u64 = 10;
    let count = async || {
        let vm = guest.client.get_vm(VM).await?;
        let stops = vm.stops.map(|stops| stops.count);
        stops.ok_or_else(|| wrong!("the server doesn't tell the VM's stops"))
    };
    let before = count().await?;
    for _ in 0..ROUNDS {
        let probes = guest.client.register_probes(VM, specs(places)?).await?;
        let ids = probes.iter().map(|probe| probe.id).collect();
        guest.client.unregister_probes(VM, ids, Vec::new()).await?;
    }
    let stops = count().await? - before;
    // Registering is one batch, removing is another.
    let batches = 2 * ROUNDS;
    Ok(Figure {
        id: "BN09",
        value: rounded(stops as f64 / batches as f64),
        unit: "stops",
        place,
        how: format!(
            "stops of 2 vCPUs for a batch of {}: closures of the gate, counted by the monitor",
            places.len()
        ),
        note: format!("{stops} stops for {batches} batches; limit 1"),
    })
}

pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
