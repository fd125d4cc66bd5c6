//! The engine's part of a stop: the time to register and to remove a batch, with no vCPU to stop.

use std::fmt::{self, Display, Formatter};
use std::hint::black_box;
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
pub(crate) const BATCHES: [usize; 4] = [1, 100, 1000, 10_000];
/// Repetitions; the figure is the one in the middle.
const ROUNDS: usize = 11;
/// Bytes whose writing evicts everything else from the caches.
pub(crate) const EVICTING: usize = 128 << 20;

/// Measures all batches.
///
/// # Errors
/// See [`ScenarioError`].
pub fn measure(image: &Image, release: &str) -> Result<Vec<Entry>, ScenarioError> {
    let kernel = image.kernel()?;
    let guest = Guest::new(image, &kernel.symbols)?;
    let engine = Engine::new(kernel, image.map(), 1, Arc::new(Nobody));
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
    for cache in [Cache::Cold, Cache::Warm] {
        let mut before: Option<(usize, [f64; 2])> = None;
        for count in BATCHES {
            let batch = spread(&specs, count).ok_or(ScenarioError::TooFew {
                what: "entries",
                found: specs.len(),
                wanted: count,
            })?;
            let middle = middle(&engine, &guest, &batch, cache)?;
            for (index, what) in ["register", "remove"].into_iter().enumerate() {
                let how = format!(
                    "engine's part of the stop, to {what} {count} function entries of {release} in a \
                     batch, {cache}; median of {ROUNDS}"
                );
                let time = middle[index];
                let growth = before.map_or(String::new(), |(fewer, before)| {
                    growth(count as f64 / fewer as f64, time / before[index].max(0.001))
                });
                let note = format!("{:.2} us a probe{growth}", time / count as f64);
                let time = (time * 10.0).round() / 10.0;
                entries.push(Entry::native("BN10", time, "us", how).note(note));
            }
            before = Some((count, middle));
        }
    }
    Ok(entries)
}

/// Returns `count` probes, evenly spread over those of the largest batch, so that batches of all sizes are alike in all
/// else.
fn spread(specs: &[ProbeSpec], count: usize) -> Option<Vec<ProbeSpec>> {
    let most = BATCHES.into_iter().max()?;
    let step = most.checked_div(count)?;
    let some = specs.get(..most)?.iter().step_by(step).take(count);
    Some(some.cloned().collect())
}

/// Measures the microseconds to register a batch, and to remove it.
fn middle(
    engine: &Engine,
    guest: &Guest,
    batch: &[ProbeSpec],
    cache: Cache,
) -> Result<[f64; 2], ScenarioError> {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let mut draft = engine.draft(&guest.ram, batch);
        cache.prepare();
        let start = Instant::now();
        engine.register_drafted(guest, &mut draft)?;
        times[0].push(start.elapsed());
        let mut removal = engine.draft_removal(draft.registered())?;
        cache.prepare();
        let start = Instant::now();
        engine.unregister_drafted(guest, &mut removal)?;
        times[1].push(start.elapsed());
    }
    Ok(times.map(|times| median(times) / 1000.0))
}

/// The content of the processor's caches when a stop begins.
#[derive(Debug, Clone, Copy)]
enum Cache {
    /// Nothing of the text, as for a batch that comes once after the guest has worked. Batches are compared in this
    /// state, as it is the same for each.
    Cold,
    /// The leftovers of the round before: all of a small batch, and little of a large one.
    Warm,
}

impl Cache {
    fn prepare(self) {
        match self {
            Self::Cold => {
                // A write to each line evicts everything else.
                black_box(&mut vec![1_u8; EVICTING]);
            }
            Self::Warm => {}
        }
    }
}

impl Display for Cache {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "caches emptied before",
            Self::Warm => "right behind the same batch's last round",
        })
    }
}

/// Returns the remark for `probes` times as many probes that take `time` times as long.
pub(crate) fn growth(probes: f64, time: f64) -> String {
    let verdict = if time <= probes { "kept" } else { "missed" };
    format!(
        "; {probes:.0} times the probes of the figure before take {time:.1} times as long (limit: no \
         more than linearly, {verdict})"
    )
}

/// The median, in nanoseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    middle.as_nanos() as f64
}
