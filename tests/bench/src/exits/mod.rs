//! The host's share of a breakpoint hit (BN02): from `KVM_RUN`'s return to its next call, with all that
//! the monitor, the engine and the server do in between. The whole server runs in this process, with a
//! tiny guest on this machine's own KVM.

mod calls;
mod guest;
mod steps;

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;
use tokio::task::spawn_blocking;
use vmprobe_client::{Client, ClientError, Message, spec};

use crate::clock::Clock;
use crate::in_process::{InProcessError, create_guest, with_server};
use crate::report::Entry;

pub use guest::kernel;
pub use steps::{thread_to_trace, trace};

use steps::{Steps, StepsError};

/// Name of the only VM.
const VM: &str = "exits";
/// Limits in nanoseconds: of the median, and of the 99th percentile.
const LIMITS: [(f64, f64); 2] = [(0.50, 500.0), (0.99, 2000.0)];
/// Sites of a guest.
const SITES: [usize; 2] = [100, 10_000];
/// Hits of a guest.
const HITS: usize = 60_000;
/// Times that each guest runs; the figures are those of the run in the middle.
const RUNS: usize = 5;

/// Why the hits could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ExitsError {
    /// There is no server or no guest.
    #[error(transparent)]
    InProcess(#[from] InProcessError),
    /// The guest's symbols aren't there.
    #[error("the probe {0} is not understood")]
    Spec(String),
    /// Hits were lost, or their time was not taken.
    #[error("{counted} hits of {wanted} were counted, {missed} missed, and {timed} were timed")]
    Hits {
        /// What there should be.
        wanted: u64,
        /// Of the probes.
        counted: u64,
        /// Of the probes.
        missed: u64,
        /// Exits with a time.
        timed: u64,
    },
    /// Their instructions were not counted.
    #[error(transparent)]
    Steps(#[from] StepsError),
}

impl From<ClientError> for ExitsError {
    fn from(error: ClientError) -> Self {
        Self::InProcess(error.into())
    }
}

/// Measures with 100 and 10,000 sites, each with and without a client that reads the events.
///
/// # Errors
/// See [`ExitsError`].
pub fn measure() -> Result<Vec<Entry>, ExitsError> {
    let clock = Clock::new();
    let runtime = Runtime::new().map_err(|error| InProcessError::Io("start a runtime", error))?;
    let mut entries = Vec::new();
    for sites in SITES {
        for is_read in [false, true] {
            let mut runs: Vec<Run> = Vec::new();
            for _ in 0..RUNS {
                let run = with_server(async |client| hits(client, sites, is_read, clock).await);
                runs.push(runtime.block_on(run)?);
            }
            entries.extend(figures(sites, is_read, &runs, clock));
        }
        let steps = with_server(async |client| steps(client, sites).await);
        entries.extend(counted(sites, runtime.block_on(steps)?));
    }
    Ok(entries)
}

/// Counts the instructions of a guest's hits, while no client reads the events.
async fn steps(client: &Client, sites: usize) -> Result<Steps, ExitsError> {
    create_probed(client, sites).await?;
    client.start_vm(VM).await?;
    let steps = spawn_blocking(steps::count).await;
    client.wait_vm(VM).await?;
    client.delete_vm(VM).await?;
    Ok(steps.unwrap_or(Err(StepsError::NotTraced))?)
}

fn counted(sites: usize, steps: Steps) -> impl Iterator<Item = Entry> {
    let figures = [
        (steps.instructions, "instructions", "instructions"),
        (steps.lines, "lines", "lines of 64 bytes of the code"),
    ];
    figures.into_iter().map(move |(value, unit, what)| {
        let how = format!(
            "{what} from KVM_RUN's return to its next call, counted by single steps: {sites} sites \
             with push and pop, nobody reads the events"
        );
        Entry {
            place: "host",
            ..Entry::native("BN02", value as f64, unit, how)
        }
    })
}

/// Creates a guest all of whose sites are probed.
async fn create_probed(client: &Client, sites: usize) -> Result<(), ExitsError> {
    let code = kernel(sites, HITS / sites).map_err(InProcessError::from)?;
    create_guest(client, VM, &code).await?;
    let specs = (0..sites).map(|site| {
        let text = guest::site(site);
        spec::parse(&text).map_err(|_| ExitsError::Spec(text))
    });
    let specs = specs.collect::<Result<_, _>>()?;
    client.register_probes(VM, specs).await?;
    Ok(())
}

/// The hits of one guest.
struct Run {
    /// Ticks of each hit.
    ticks: Histogram<u64>,
    /// Calls of `ioctl` for a hit besides `KVM_RUN`.
    ioctls: f64,
}

/// Runs one guest to its end.
async fn hits(
    client: &Client,
    sites: usize,
    is_read: bool,
    clock: Clock,
) -> Result<Run, ExitsError> {
    create_probed(client, sites).await?;
    let reader = match is_read {
        true => {
            let mut stream = client.events(VM, Vec::new()).await?;
            Some(tokio::spawn(async move {
                while let Ok(Some(Message::Batch { .. })) = stream.next().await {}
            }))
        }
        false => None,
    };
    calls::begin();
    client.start_vm(VM).await?;
    client.wait_vm(VM).await?;
    let times = calls::end();
    if let Some(reader) = reader {
        // It ends with the guest.
        let _ = reader.await;
    }
    let probes = client.list_probes(VM).await?;
    client.delete_vm(VM).await?;

    let sum = |of: fn(&vmprobe_client::v1::Probe) -> u64| probes.iter().map(of).sum::<u64>();
    let (wanted, counted, missed) = (
        (HITS / sites * sites) as u64,
        sum(|probe| probe.hits),
        sum(|probe| probe.missed),
    );
    let timed = times.len() as u64;
    if counted != wanted || missed != 0 || timed < wanted {
        return Err(ExitsError::Hits {
            wanted,
            counted,
            missed,
            timed,
        });
    }
    let mut ticks = Histogram::new_with_bounds(1, 1 << 40, 3)
        .unwrap_or_else(|_| unreachable!("the bounds are valid"));
    // The reading that ends a time belongs to the next `KVM_RUN`.
    let ioctls: u64 = times.iter().map(|time| time.readings - 1).sum();
    for time in times {
        ticks.saturating_record(clock.without_own(time.ticks, time.readings));
    }
    Ok(Run {
        ticks,
        ioctls: ioctls as f64 / timed as f64,
    })
}

/// The figures of the run in the middle, separately for each percentile.
fn figures(sites: usize, is_read: bool, runs: &[Run], clock: Clock) -> impl Iterator<Item = Entry> {
    let events = match is_read {
        true => "a client reads the events on the same cores",
        false => "nobody reads the events",
    };
    let on_host = |entry| Entry {
        place: "host",
        ..entry
    };
    let mut ioctls: Vec<f64> = runs.iter().map(|run| run.ioctls).collect();
    ioctls.sort_by(f64::total_cmp);
    let how = format!("ioctls of a hit besides KVM_RUN: {sites} sites with push and pop, {events}");
    let rounded = |calls: f64| (calls * 1000.0).round() / 1000.0;
    let (middle, most) = (ioctls[ioctls.len() / 2], ioctls[ioctls.len() - 1]);
    let note = format!("at most {} in {RUNS} runs", rounded(most));
    let counted = Entry::native("BN02", rounded(middle), "calls", how).note(note);
    let times = LIMITS.into_iter().map(move |(quantile, limit)| {
        let values = runs.iter().map(|run| run.ticks.value_at_quantile(quantile));
        let mut values: Vec<f64> = values.map(|ticks| clock.nanoseconds(ticks)).collect();
        values.sort_by(f64::total_cmp);
        let value = values[values.len() / 2];
        let verdict = if value <= limit { "kept" } else { "missed" };
        let (low, high) = (values[0], values[values.len() - 1]);
        let how = format!(
            "p{:.0} from KVM_RUN's return to its next call, other ioctls left out: {sites} sites \
             with push and pop, {events}",
            quantile * 100.0
        );
        let note = format!("limit {limit} ns: {verdict}; {low:.0} to {high:.0} ns in {RUNS} runs");
        Entry::native("BN02", (value * 10.0).round() / 10.0, "ns", how).note(note)
    });
    times.chain([counted]).map(on_host)
}
