//! From ring to host: how many records arrive, and whether any is lost.
//!
//! The producers are threads that hit a jump probe: they execute a detour as generated for a guest, with GS base set to
//! their vCPU's block. The host's side does what the engine does.

mod guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use guest::{CELL, Guest, Hits, NUMBER, VCPUS, cpu_seconds};
use probe_engine::engine::Merger;
use probe_engine::event::{Detail, Event, EventSink, Stack};
use probe_engine::fetch::Fetches;
use probe_engine::probe::ProbeId;
use probe_engine::ring::{Record, Shape};
use probe_engine::value::Recorded;

use crate::report::Entry;
use crate::sinks::Nobody;

pub use guest::RingsError;

/// How long each round takes.
const ROUND: Duration = Duration::from_secs(1);
/// Rounds; the figure is that of the round in the middle, losses are those of all.
const ROUNDS: usize = 3;
/// The rate that must be reached with no loss, in records a second.
const WANTED: f64 = 1_000_000.0;
/// How long the host waits after reading little, and how long a paced producer waits for its next records.
const PAUSE: Duration = Duration::from_micros(500);
/// Little to read.
const LITTLE: u64 = 2_000;

/// What is measured.
#[derive(Debug, Clone, Copy)]
struct Plan {
    producers: usize,
    /// Hits a second, all producers together; as many as they can if `None`.
    rate: Option<f64>,
    /// True if records become events that are merged by time.
    merged: bool,
}

/// The results of a round.
#[derive(Debug, Clone, Copy)]
struct Round {
    hits: u64,
    arrived: u64,
    lost: u64,
    seconds: f64,
    /// CPU time of the host's thread.
    cpu_seconds: f64,
}

/// Measures all of it.
///
/// # Errors
/// See [`RingsError`].
pub fn measure() -> Result<Vec<Entry>, RingsError> {
    let mut entries = Vec::new();
    for rate in [Some(WANTED), None] {
        for producers in 1..=VCPUS {
            for merged in [false, true] {
                let plan = Plan {
                    producers,
                    rate,
                    merged,
                };
                let rounds: Result<Vec<_>, _> = (0..ROUNDS).map(|_| round(plan)).collect();
                entries.push(entry(plan, rounds?));
            }
        }
    }
    Ok(entries)
}

fn entry(plan: Plan, mut rounds: Vec<Round>) -> Entry {
    let a_second = |round: &Round| round.arrived as f64 / round.seconds;
    rounds.sort_by(|one, other| a_second(one).total_cmp(&a_second(other)));
    let sum = |part: fn(&Round) -> u64| rounds.iter().map(part).sum::<u64>();
    let (hits, lost) = (sum(|round| round.hits), sum(|round| round.lost));
    let middle = rounds[rounds.len() / 2];
    let at_rate = match plan.rate {
        Some(rate) => format!("{} million hits a second in all", rate / 1e6),
        None => "as many hits as they can".to_owned(),
    };
    let through = if plan.merged {
        ", merged into events by time"
    } else {
        ""
    };
    let how = format!(
        "records a second from ring to host{through}: {} native producer(s) in the generated detour, \
         all registers, {at_rate}",
        plan.producers
    );
    let cpu = middle.cpu_seconds * 1e9 / middle.arrived.max(1) as f64;
    let mut note = format!(
        "lost and counted {lost} of {hits} hits in {ROUNDS} rounds; the host's thread took {cpu:.0} ns \
         of CPU time a record"
    );
    if plan.rate.is_some() {
        let enough = middle.hits as f64 / middle.seconds >= 0.99 * WANTED;
        let verdict = match (lost, enough) {
            (0, true) => "kept",
            (0, false) => "missed: the producers got too little CPU time for so many hits",
            _ => "missed: the host's thread got no CPU time for longer than a ring lasts",
        };
        note = format!("limit 1 million with loss 0: {verdict}; {note}");
    }
    Entry::native("BN11", a_second(&middle).round(), "1/s", how).note(note)
}

fn round(plan: Plan) -> Result<Round, RingsError> {
    let (guest, mut rings) = Guest::new()?;
    let merger = Merger::new(Arc::new(Nobody));
    merger.set_active(true);
    let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(plan.producers));
    thread::scope(|threads| {
        let start = Instant::now();
        let producer = |vcpu| {
            let (guest, stop, running) = (&guest, &stop, &running);
            move || {
                let hits = guest.enter(vcpu).map(|hits| produce(hits, plan, stop));
                running.fetch_sub(1, Ordering::Release);
                hits
            }
        };
        let producers: Vec<_> = (0..plan.producers)
            .map(|vcpu| threads.spawn(producer(vcpu)))
            .collect();
        let cpu_start = cpu_seconds();
        let mut last = [0; VCPUS];
        let (mut arrived, mut wrong) = (0, None);
        let mut each = |record: Record<'_>| {
            let vcpu = record.vcpu.0;
            let last = &mut last[vcpu as usize];
            let found = record.registers().rdi;
            if found <= *last {
                wrong.get_or_insert(RingsError::OutOfOrder {
                    vcpu,
                    found,
                    after: *last,
                });
            }
            *last = found;
            if plan.merged {
                merger.event(&event(&record));
            }
        };
        let shape = |header: probe_engine::ring::RecordHeader| {
            (header.detour == NUMBER).then(|| Shape::of(Fetches::ALL))
        };
        loop {
            let is_last = running.load(Ordering::Acquire) == 0;
            let drained = rings.drain(&guest.ram, shape, &mut each);
            arrived += drained.records;
            if plan.merged {
                merger.drained(drained.is_blocked());
            }
            if start.elapsed() >= ROUND {
                stop.store(true, Ordering::Relaxed);
            }
            if is_last {
                break;
            }
            if drained.records < LITTLE {
                thread::sleep(PAUSE);
            }
        }
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_start);
        let mut hits = 0;
        for producer in producers {
            hits += producer.join().map_err(|_| RingsError::Thread)??;
        }
        rings.count(&guest.ram, CELL..CELL + 1)?;
        let lost = rings.total(CELL);
        match wrong {
            Some(wrong) => Err(wrong),
            None if arrived + lost != hits => Err(RingsError::Vanished {
                hits,
                arrived,
                lost,
            }),
            None => Ok(Round {
                hits,
                arrived,
                lost,
                seconds,
                cpu_seconds: cpu,
            }),
        }
    })
}

/// Hits the probe until it is time to stop, and returns how often. The hits have numbers from 1 on.
fn produce(hits: Hits, plan: Plan, stop: &AtomicBool) -> u64 {
    let (start, mut done) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let due = match plan.rate {
            Some(rate) => {
                let due = start.elapsed().as_secs_f64() * rate / plan.producers as f64;
                due as u64
            }
            None => done + LITTLE,
        };
        while done < due {
            done += 1;
            hits.hit(done);
        }
        if plan.rate.is_some() {
            thread::sleep(PAUSE);
        }
    }
    done
}

fn event(record: &Record<'_>) -> Event {
    Event {
        probe: ProbeId(record.detour.into()),
        vcpu: record.vcpu,
        tsc: record.tsc,
        registers: record.registers(),
        task: record.task,
        context: None,
        time_ns: 0,
        stack: Stack::default(),
        flags: None,
        values: Recorded::default(),
        detail: Detail::Pre,
    }
}
