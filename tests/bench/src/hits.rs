//! The engine's time for a hit (BN02).

use std::path::Path;
use std::sync::Arc;

use probe_engine::event::EventSink;

use crate::clock::Clock;
use crate::criterion_means;
use crate::image::Image;
use crate::latency::{self, Measured};
use crate::report::Entry;
use crate::scenario::{PLANS, Plan, Probed, Scenario, ScenarioError};
use crate::sinks::{Nobody, Server};

/// Limits in nanoseconds: of the median, and of the 99th percentile.
const LIMITS: [f64; 2] = [500.0, 2000.0];

/// Measures all scenarios. `means` is the folder of criterion's results, if it has run.
///
/// # Errors
/// See [`ScenarioError`].
pub fn measure(
    image: &Image,
    release: &str,
    means: Option<&Path>,
) -> Result<Vec<Entry>, ScenarioError> {
    let clock = Clock::new();
    let mut entries = Vec::new();
    for plan in PLANS {
        for server in [None, Some(Server::new())] {
            entries.extend(percentiles(image, release, plan, clock, server.as_ref())?);
        }
        let mean = means.and_then(|folder| criterion_means::read(folder, plan.name));
        entries.extend(mean.map(|mean| {
            let what = match plan.probed {
                Probed::Return => "a followed call, entry and return",
                _ => "a hit",
            };
            let how = format!(
                "mean of criterion: {what}, {} on {release}, events dropped; with setting the \
                 vCPU's registers back",
                plan.name
            );
            Entry::native("BN02", rounded(mean), "ns", how)
        }));
    }
    Ok(entries)
}

fn percentiles(
    image: &Image,
    release: &str,
    plan: Plan,
    clock: Clock,
    server: Option<&Arc<Server>>,
) -> Result<Vec<Entry>, ScenarioError> {
    let (sink, events): (Arc<dyn EventSink>, _) = match server {
        None => (Arc::new(Nobody), "events dropped"),
        Some(server) => (
            Arc::<Server>::clone(server),
            "events queued for one client by the server's own sink",
        ),
    };
    let mut scenario = Scenario::new(image, plan, sink)?;
    let server = server.map(Arc::as_ref);
    let shown = scenario.shown.clone();
    let measured = match plan.probed {
        Probed::Return => {
            let [entry, exit] = latency::calls(&mut scenario, clock, server)?;
            vec![
                (format!("entry of {shown}"), entry),
                (format!("return of {shown}"), exit),
            ]
        }
        _ => vec![(shown, latency::hits(&mut scenario, clock, server)?)],
    };
    let name = |what: &str| format!("{}: {what} on {release}, {events}", plan.name);
    let entries = measured
        .into_iter()
        .flat_map(|(what, measured)| figures(&name(&what), measured, clock, plan.cause()));
    Ok(entries.collect())
}

fn figures(what: &str, measured: Measured, clock: Clock, cause: &str) -> [Entry; 2] {
    let Measured { median, p99_range } = measured;
    let own = clock.own_nanoseconds();
    let entry = |quantile: &str, value: f64, limit: f64, more: String| {
        let verdict = if value <= limit {
            "kept".to_owned()
        } else {
            format!("missed, because {cause}")
        };
        let how = format!("{quantile} of a hit in the engine, {what}");
        let note = format!("limit {limit} ns: {verdict}{more}");
        Entry::native("BN02", rounded(value), "ns", how).note(note)
    };
    let (low, high) = p99_range;
    [
        entry(
            "p50",
            median.p50,
            LIMITS[0],
            format!("; the clock's own {own:.0} ns are left out"),
        ),
        entry(
            "p99",
            median.p99,
            LIMITS[1],
            format!("; {low:.0} to {high:.0} ns in 5 rounds of 60,000"),
        ),
    ]
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
