//! How long a guest stands still for a batch (BN10), as the server reports it: a whole stop, with the vCPU leaving and
//! entering guest mode. The whole server runs in this process, with a tiny guest on this machine's own KVM.

use std::hint::black_box;
use std::time::Duration;

use iced_x86::IcedError;
use iced_x86::code_asm::rbx;
use tokio::runtime::Runtime;
use vmprobe_client::{Client, ClientError, spec};

use crate::in_process::{InProcessError, create_guest, with_server};
use crate::pause::{BATCHES, EVICTING, growth};
use crate::report::Entry;

/// Name of the only VM.
const VM: &str = "stops";
/// Prefix of the functions' names, which the number follows.
pub const FUNCTION: &str = "function_";
/// Bytes from one function to the next: the length of a cache line.
const APART: usize = 64;
/// Times that each batch is registered and removed; the figure is the median.
const ROUNDS: usize = 11;

/// Why stops could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum StopsError {
    /// There is no server or no guest.
    #[error(transparent)]
    InProcess(#[from] InProcessError),
    /// The guest's symbols aren't there.
    #[error("the probe {0} is not understood")]
    Spec(String),
}

impl From<ClientError> for StopsError {
    fn from(error: ClientError) -> Self {
        Self::InProcess(error.into())
    }
}

/// Measures all batches.
///
/// # Errors
/// See [`StopsError`].
pub fn measure() -> Result<Vec<Entry>, StopsError> {
    let runtime = Runtime::new().map_err(|error| InProcessError::Io("start a runtime", error))?;
    runtime.block_on(with_server(async |client| batches(client).await))
}

/// What a guest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// It spins.
    Spins,
    /// It waits for an interrupt, which never comes.
    Halts,
}

/// Builds a kernel that only spins or halts, and has functions to be probed.
///
/// # Errors
/// None that this code can cause.
pub fn kernel(does: Loop, functions: usize) -> Result<Vec<u8>, IcedError> {
    const INT3: [u8; APART - 3] = [0xcc; APART - 3];
    tiny_kernel::build(|a, names| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        match does {
            Loop::Spins => a.nop()?,
            Loop::Halts => a.hlt()?,
        }
        a.jmp(again)?;
        for index in 0..functions {
            names.here(a, &format!("{FUNCTION}{index}"))?;
            a.push(rbx)?;
            a.pop(rbx)?;
            a.ret()?;
            a.db(&INT3)?;
        }
        Ok(())
    })
}

async fn batches(client: &Client) -> Result<Vec<Entry>, StopsError> {
    let most = BATCHES.iter().copied().max().unwrap_or(0);
    let code = kernel(Loop::Spins, most).map_err(InProcessError::from)?;
    create_guest(client, VM, &code).await?;
    client.start_vm(VM).await?;
    let mut entries = Vec::new();
    let mut before: Option<(usize, [f64; 2])> = None;
    for count in BATCHES {
        let middle = middle(client, count).await?;
        for (index, what) in ["register", "remove"].into_iter().enumerate() {
            let time = middle[index];
            let growth = before.map_or(String::new(), |(fewer, before)| {
                growth(count as f64 / fewer as f64, time / before[index].max(0.001))
            });
            let how = format!(
                "stop of a vCPU to {what} {count} function entries in a batch, as the server tells; median of \
                 {ROUNDS}"
            );
            let note = format!("{:.2} us a probe{growth}", time / count as f64);
            let entry = Entry::native("BN10", (time * 10.0).round() / 10.0, "us", how).note(note);
            entries.push(Entry {
                place: "host",
                ..entry
            });
        }
        before = Some((count, middle));
    }
    client.delete_vm(VM).await?;
    Ok(entries)
}

/// Returns the microseconds of the stop to register a batch, and of that to remove it.
async fn middle(client: &Client, count: usize) -> Result<[f64; 2], StopsError> {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let specs = (0..count).map(|index| {
            let text = format!("p {FUNCTION}{index} nojump");
            spec::parse(&text).map_err(|_| StopsError::Spec(text))
        });
        let specs = specs.collect::<Result<_, _>>()?;
        evict();
        let batch = client.register_batch(VM, specs).await?;
        times[0].push(batch.stopped);
        let ids = batch.probes.iter().map(|probe| probe.id).collect();
        evict();
        let batch = client.unregister_batch(VM, ids, Vec::new()).await?;
        times[1].push(batch.stopped);
    }
    Ok(times.map(|mut times: Vec<Duration>| {
        times.sort_unstable();
        times[ROUNDS / 2].as_nanos() as f64 / 1000.0
    }))
}

/// Evicts the guest from the processor's caches, which is the state for a batch that comes once. What the server
/// prepares before the stop is in the caches again by the time of the stop.
fn evict() {
    black_box(&mut vec![1_u8; EVICTING]);
}
