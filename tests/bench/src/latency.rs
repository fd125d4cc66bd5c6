//! How long single hits take.

use guest_state::Action;
use hdrhistogram::Histogram;

use crate::clock::Clock;
use crate::scenario::{Scenario, ScenarioError};
use crate::sinks::Server;

/// Hits of a round. The server's queue has room for them.
const HITS: u32 = 60_000;
/// Rounds; the figures are those of the round in the middle.
const ROUNDS: usize = 5;

/// Percentiles of one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Nanoseconds that half of the hits took at most.
    pub p50: f64,
    /// The same for 99 of 100.
    pub p99: f64,
}

/// The figures of all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The figures of the round in the middle, separately for each.
    pub median: Figures,
    /// The lowest and the highest 99th percentile of a round.
    pub p99_range: (f64, f64),
}

/// Times hits of a scenario. With a server, each round has a client of its own.
///
/// # Errors
/// A hit was not answered as expected.
pub fn hits(
    scenario: &mut Scenario,
    clock: Clock,
    server: Option<&Server>,
) -> Result<Measured, ScenarioError> {
    rounds(server, || {
        let mut histogram = histogram();
        for _ in 0..HITS {
            scenario.prepare();
            let at = scenario.at();
            let (ticks, action) = clock.time(|| scenario.hit());
            resumed(action, at)?;
            histogram.saturating_record(ticks);
        }
        Ok([figures(&histogram, clock)])
    })
    .map(|[measured]| measured)
}

/// Times the entry and the return of calls that a return probe follows.
///
/// # Errors
/// A hit was not answered as expected.
pub fn calls(
    scenario: &mut Scenario,
    clock: Clock,
    server: Option<&Server>,
) -> Result<[Measured; 2], ScenarioError> {
    rounds(server, || {
        let mut entries = histogram();
        let mut returns = histogram();
        for _ in 0..HITS {
            scenario.prepare_call()?;
            let (ticks, action) = clock.time(|| scenario.hit());
            resumed(action, scenario.at())?;
            entries.saturating_record(ticks);
            scenario.prepare_return()?;
            let (ticks, action) = clock.time(|| scenario.hit());
            resumed(action, scenario.at())?;
            if !scenario.has_returned() {
                return Err(ScenarioError::NotResumed {
                    at: scenario.at(),
                    action: Box::new(action),
                });
            }
            returns.saturating_record(ticks);
        }
        Ok([entries, returns].map(|histogram| figures(&histogram, clock)))
    })
}

fn rounds<const N: usize>(
    server: Option<&Server>,
    mut round: impl FnMut() -> Result<[Figures; N], ScenarioError>,
) -> Result<[Measured; N], ScenarioError> {
    let mut all = Vec::with_capacity(ROUNDS);
    for number in 0..=ROUNDS {
        let _client = server.map(Server::client);
        let figures = round()?;
        // The first round warms up caches and branch predictors.
        if number > 0 {
            all.push(figures);
        }
    }
    Ok(std::array::from_fn(|index| {
        let sorted = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = all.iter().map(|round| of(&round[index])).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (p50, p99) = (sorted(|round| round.p50), sorted(|round| round.p99));
        Measured {
            median: Figures {
                p50: p50[ROUNDS / 2],
                p99: p99[ROUNDS / 2],
            },
            p99_range: (p99[0], p99[ROUNDS - 1]),
        }
    }))
}

fn resumed(action: Action, at: guest_state::GuestVirtAddr) -> Result<(), ScenarioError> {
    match action {
        Action::Resume => Ok(()),
        action => Err(ScenarioError::NotResumed {
            at,
            action: Box::new(action),
        }),
    }
}

/// A histogram of ticks to three digits, up to 2^40.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 40, 3)
        .unwrap_or_else(|_| unreachable!("the bounds are valid"))
}

fn figures(histogram: &Histogram<u64>, clock: Clock) -> Figures {
    let at = |quantile| clock.nanoseconds(histogram.value_at_quantile(quantile));
    Figures {
        p50: at(0.50),
        p99: at(0.99),
    }
}
