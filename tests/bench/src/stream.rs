//! Events from the server to a client (BN12): the events of one VM through the server's queue, one gRPC
//! stream on loopback and the client's decoder, which `vmprobe` uses. The whole server runs in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use guest_state::{Registers, Tsc, VcpuId};
use probe_engine::event::{Detail, Event, Stack};
use probe_engine::probe::ProbeId;
use probe_engine::value::Recorded;
use tokio::runtime::Runtime;
use vmprobe_client::{Client, ClientError, Message};
use vmprobe_proto::v1;
use vmprobe_server::testing::{Fanout, Publishers, event};

use crate::exits::kernel;
use crate::in_process::{InProcessError, create_guest, with_server};
use crate::report::Entry;

/// Name of the only VM.
const VM: &str = "stream";
/// Events of a run.
const EVENTS: u64 = 2_000_000;
/// Runs; the figure is that of the one in the middle.
const RUNS: usize = 5;
/// Events that are published and not received yet, at most: half of the server's queue.
const AHEAD: u64 = 32 * 1024;
/// How long the publisher waits when so many are under way.
const PAUSE: Duration = Duration::from_micros(100);
/// What has to come through with nothing lost, in events a second.
const WANTED: f64 = 1_000_000.0;

/// Why the stream could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// There is no server or no guest.
    #[error(transparent)]
    InProcess(#[from] InProcessError),
    /// The server doesn't know the VM that it has just made.
    #[error("the server has no VM `{VM}`")]
    NoVm,
    /// Events did not come.
    #[error("{received} of {EVENTS} events were received, {lost} lost")]
    Events {
        /// By the client.
        received: u64,
        /// As the client was told.
        lost: u64,
    },
}

impl From<ClientError> for StreamError {
    fn from(error: ClientError) -> Self {
        Self::InProcess(error.into())
    }
}

/// What an event has.
#[derive(Debug, Clone, Copy)]
enum Contents {
    /// All registers and the context.
    Registers,
    /// A text, a number and the context.
    Arguments,
}

/// Measures both kinds of events.
///
/// # Errors
/// See [`StreamError`].
pub fn measure() -> Result<Vec<Entry>, StreamError> {
    let runtime = Runtime::new().map_err(|error| InProcessError::Io("start a runtime", error))?;
    let mut entries = Vec::new();
    for (contents, told) in [
        (Contents::Registers, "all registers"),
        (Contents::Arguments, "two arguments, one a text of 20 bytes"),
    ] {
        let mut rates = Vec::new();
        for _ in 0..RUNS {
            let run =
                with_server(async |client, publishers| run(client, publishers, contents).await);
            rates.push(EVENTS as f64 / runtime.block_on(run)?.as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        let (rate, low, high) = (rates[RUNS / 2], rates[0], rates[RUNS - 1]);
        let verdict = if rate >= WANTED { "kept" } else { "missed" };
        let how = format!(
            "events a second through one gRPC stream on loopback to the client's decoder: {told} and the \
             context, published by one thread"
        );
        let note = format!(
            "limit 1 million with loss 0: {verdict}; none of {EVENTS} lost in each of {RUNS} runs, {low:.0} \
             to {high:.0}"
        );
        entries.push(Entry::native("BN12", rate.round(), "1/s", how).note(note));
    }
    Ok(entries)
}

/// How long it takes from the first event's publishing to the last one's receiving.
async fn run(
    client: &Client,
    publishers: &Publishers,
    contents: Contents,
) -> Result<Duration, StreamError> {
    let code = kernel(2, 1).map_err(InProcessError::from)?;
    create_guest(client, VM, &code).await?;
    let fanout = publishers.of(VM).ok_or(StreamError::NoVm)?;
    let mut stream = client.events(VM, Vec::new()).await?;
    let received = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let publisher = thread::spawn({
        let received = Arc::clone(&received);
        move || publish(&fanout, contents, &received)
    });
    let mut told = 0;
    let mut lost = 0;
    while told + lost < EVENTS {
        match stream.next().await? {
            Some(Message::Batch { events, lost: more }) => {
                told += events.len() as u64;
                lost += more;
                received.store(told + lost, Ordering::Release);
            }
            _ => break,
        }
    }
    let took = began.elapsed();
    // Should the stream have ended early, the publisher must not wait for it.
    received.store(EVENTS, Ordering::Release);
    // It has nothing to tell, and has published all.
    let _ = publisher.join();
    client.delete_vm(VM).await?;
    if told == EVENTS && lost == 0 {
        Ok(took)
    } else {
        Err(StreamError::Events {
            received: told,
            lost,
        })
    }
}

/// Publishes all events, each as the server does that of a hit.
fn publish(fanout: &Fanout, contents: Contents, received: &AtomicU64) {
    let mut hit = hit(contents);
    for number in 0..EVENTS {
        while number.saturating_sub(received.load(Ordering::Acquire)) > AHEAD {
            thread::sleep(PAUSE);
        }
        hit.tsc = Tsc(number);
        fanout.publish(&told(&hit, contents));
    }
}

fn told(hit: &Event, contents: Contents) -> v1::Event {
    let values = match contents {
        Contents::Registers => Vec::new(),
        Contents::Arguments => vec![
            value(v1::value::Value::Text(b"/usr/lib/locale/C.ut".to_vec())),
            value(v1::value::Value::Unsigned(hit.tsc.0)),
        ],
    };
    v1::Event {
        context: Some(v1::Context {
            pid: 4321,
            tgid: 4321,
            comm: b"postgres".to_vec(),
            time_ns: hit.time_ns,
            ..v1::Context::default()
        }),
        values,
        ..event(hit)
    }
}

fn value(value: v1::value::Value) -> v1::Value {
    v1::Value { value: Some(value) }
}

/// A hit whose registers, if it has any but RIP, are mostly addresses, as in a kernel's function.
fn hit(contents: Contents) -> Event {
    let address = 0xffff_8881_0123_4560;
    let rip = 0xffff_ffff_8123_4560;
    let all = Registers {
        rax: address,
        rbx: address,
        rcx: address,
        rdx: address,
        rdi: address,
        rsi: address,
        rsp: address,
        rbp: address,
        r8: 8,
        r9: 9,
        r10: address,
        r11: address,
        r12: address,
        r13: address,
        r14: address,
        r15: address,
        rip,
        rflags: 0x246,
    };
    let registers = match contents {
        Contents::Registers => all,
        Contents::Arguments => Registers {
            rip,
            ..Registers::default()
        },
    };
    Event {
        probe: ProbeId(1),
        vcpu: VcpuId(0),
        tsc: Tsc(0),
        registers,
        task: address,
        time_ns: 123_456_789_012,
        context: None,
        flags: None,
        stack: Stack::default(),
        values: Recorded::default(),
        detail: Detail::Pre,
    }
}
