//! The engine's part of a stop: what registering and removing a batch takes, with no vCPU to stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_engine::engine::Engine;
use probe_engine::probe::ProbeSpec;

use crate::fate::{self, Fate};
use crate::functions;
use crate::guest::Guest;
use crate::image::Image;
use crate::report::Entry;
use crate::scenario::ScenarioError;
use crate::sinks::Nobody;

/// Probes of a batch.
const BATCHES: [usize; 4] = [1, 100, 1000, 10_000];
/// Repetitions; the figure is the one in the middle.
const ROUNDS: usize = 11;

/// Measures all batches.
///
/// # Errors
/// See [`ScenarioError`].
pub fn measure(image: &Image, release: &str) -> Result<Vec<Entry>, ScenarioError> {
    let kernel = image.kernel()?;
    let guest = Guest::new(image, &kernel.symbols)?;
    let engine = Engine::new(kernel, Some(image.map()), 1, Arc::new(Nobody));
    guest.install_arena(&engine)?;
    let mut specs: Vec<ProbeSpec> = Vec::new();
    for function in functions::all(engine.symbols()) {
        if !function.has_entry || function.is_init {
            continue;
        }
        if let Fate::Probed(probe) = fate::of_entry(&engine, &guest, function.start)? {
            specs.push(fate::spec(probe.address));
        }
    }
    let mut entries = Vec::new();
    let mut before: Option<(usize, [f64; 2])> = None;
    for count in BATCHES {
        let batch = specs.get(..count).ok_or(ScenarioError::TooFew {
            what: "entries",
            found: specs.len(),
            wanted: count,
        })?;
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            let mut draft = engine.draft(&guest.ram, batch);
            let start = Instant::now();
            let ids = engine.register_drafted(&guest, &mut draft)?;
            times[0].push(start.elapsed());
            let mut removal = engine.draft_removal(&ids)?;
            let start = Instant::now();
            engine.unregister_drafted(&guest, &mut removal)?;
            times[1].push(start.elapsed());
        }
        let middle = times.map(|times| median(times) / 1000.0);
        for (index, what) in ["register", "remove"].into_iter().enumerate() {
            let how = format!(
                "engine's part of the stop, to {what} {count} function entries of {release} in a \
                 batch; median of {ROUNDS}"
            );
            let time = middle[index];
            let growth = before.map_or(String::new(), |(fewer, before)| {
                growth(count as f64 / fewer as f64, time / before[index].max(0.001))
            });
            let note = format!("{:.2} us a probe{growth}", time / count as f64);
            entries.push(Entry::native("BN10", (time * 10.0).round() / 10.0, "us", how).note(note));
        }
        before = Some((count, middle));
    }
    Ok(entries)
}

/// What to say of so many times the probes that take so many times as long.
fn growth(probes: f64, time: f64) -> String {
    let verdict = if time <= probes { "kept" } else { "missed" };
    format!(
        "; {probes:.0} times the probes of the figure before take {time:.1} times as long (limit: no \
         more than linearly, {verdict})"
    )
}

/// In nanoseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    middle.as_nanos() as f64
}
