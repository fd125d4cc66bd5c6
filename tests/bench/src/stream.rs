//! Events from the server to its clients (BN12): the events of one VM through the server's queues, gRPC streams on
//! loopback and the client's decoder, which `vmprobe` uses. The whole server runs in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use guest_state::{Registers, Tsc, VcpuId};
use probe_engine::event::{Detail, Event, Stack};
use probe_engine::probe::ProbeId;
use probe_engine::value::Recorded;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use vmprobe_client::{Client, ClientError, EventStream, Message};
use vmprobe_proto::v1;
use vmprobe_server::testing::{Fanout, event};

use crate::exits::kernel;
use crate::in_process::{InProcessError, Running, Transport, create_guest};
use crate::relay::Relay;
use crate::report::Entry;

/// Name of the only VM.
const VM: &str = "stream";
/// Events that clients receive in a run, together.
const EVENTS: u64 = 2_000_000;
/// Events whose bytes are counted.
const COUNTED: u64 = 200_000;
/// Streams at the same time, where there is more than one.
const STREAMS: usize = 8;
/// Runs; the figure is that of the one in the middle.
const RUNS: usize = 5;
/// The most events that are published and not received yet: half of the server's queue.
const AHEAD: u64 = 32 * 1024;
/// How long the publisher waits when that many are under way.
const PAUSE: Duration = Duration::from_micros(100);
/// The rate that must be reached with no loss, in events a second.
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
    #[error("{received} of {wanted} events were received, {lost} lost")]
    Events {
        /// As many as were published.
        wanted: u64,
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

impl Contents {
    const ALL: [Self; 2] = [Self::Registers, Self::Arguments];

    /// A description.
    fn words(self) -> &'static str {
        match self {
            Self::Registers => "all registers",
            Self::Arguments => "two arguments, one a text of 20 bytes",
        }
    }
}

/// The load of a run.
#[derive(Debug, Clone, Copy)]
struct Load {
    contents: Contents,
    /// The number of connections, each with a stream of all events.
    streams: usize,
    /// Events of each stream.
    events: u64,
}

/// Measures both kinds of events, by one stream and by several, in plain text and by TLS, and the bytes of an event.
///
/// # Errors
/// See [`StreamError`].
pub fn measure() -> Result<Vec<Entry>, StreamError> {
    let runtime = Runtime::new().map_err(|error| InProcessError::Io("start a runtime", error))?;
    let mut entries = Vec::new();
    for contents in Contents::ALL {
        for transport in [Transport::Plain, Transport::Tls] {
            for streams in [1, STREAMS] {
                let load = Load {
                    contents,
                    streams,
                    events: EVENTS / streams as u64,
                };
                entries.push(runtime.block_on(rate(load, transport))?);
            }
            entries.push(runtime.block_on(bytes(contents, transport))?);
        }
    }
    Ok(entries)
}

/// A description.
fn way(transport: Transport) -> &'static str {
    match transport {
        Transport::Plain => "in plain text",
        Transport::Tls => "by TLS with certificates of both sides",
    }
}

/// Events a second, of all streams together.
async fn rate(load: Load, transport: Transport) -> Result<Entry, StreamError> {
    let Load {
        contents,
        streams,
        events,
    } = load;
    let mut rates = Vec::new();
    for _ in 0..RUNS {
        let running = Running::start(transport, None).await?;
        let took = run(&running, &running.endpoint, load).await?;
        running.end().await;
        rates.push((events * streams as u64) as f64 / took.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    let (rate, low, high) = (rates[RUNS / 2], rates[0], rates[RUNS - 1]);
    let (told, way) = (contents.words(), way(transport));
    let how = match streams {
        1 => format!(
            "events a second through one gRPC stream on loopback, {way}, to the client's decoder: {told} and the \
             context, published by one thread"
        ),
        _ => format!(
            "the same of {streams} clients together, {way}, each with a stream of all events: {told} and the context"
        ),
    };
    let limit = match (streams, transport, rate >= WANTED) {
        (1, Transport::Plain, true) => "limit 1 million with loss 0: kept; ",
        (1, Transport::Plain, false) => "limit 1 million with loss 0: missed; ",
        _ => "",
    };
    let note = format!(
        "{limit}none of {events} lost to any stream in each of {RUNS} runs, {low:.0} to {high:.0}"
    );
    Ok(Entry::native("BN12", rate.round(), "1/s", how).note(note))
}

/// Bytes of an event on the connection, from the server to its client.
async fn bytes(contents: Contents, transport: Transport) -> Result<Entry, StreamError> {
    let load = Load {
        contents,
        streams: 1,
        events: COUNTED,
    };
    let failed = |error| InProcessError::Io("count bytes", error);
    let running = Running::start(transport, None).await?;
    let relay = Relay::to(&running.endpoint).await.map_err(failed)?;
    run(&running, &relay.endpoint, load).await?;
    let counted = relay.counted().await.map_err(failed)?;
    running.end().await;
    let (told, way) = (contents.words(), way(transport));
    let how = format!("bytes of an event on its connection, {way}: {told} and the context");
    let note = format!("of {COUNTED} events, with the frames and answers around them");
    let each = counted as f64 / COUNTED as f64;
    Ok(Entry::native("BN12", (each * 10.0).round() / 10.0, "bytes", how).note(note))
}

/// Returns the time from the publishing of the first event until all clients have received the last one. The clients
/// connect to this endpoint of the server.
async fn run(running: &Running, endpoint: &str, load: Load) -> Result<Duration, StreamError> {
    let code = kernel(2, 1).map_err(InProcessError::from)?;
    let owner = running.connect().await?;
    create_guest(&owner, VM, &code).await?;
    let fanout = running.publishers.of(VM).ok_or(StreamError::NoVm)?;
    let received: Arc<[_]> = (0..load.streams).map(|_| AtomicU64::new(0)).collect();
    let mut streams = Vec::new();
    for _ in 0..load.streams {
        let client = Client::connect_with(endpoint, &running.credentials).await?;
        streams.push(client.events(VM, Vec::new()).await?);
    }
    let began = Instant::now();
    let publisher = thread::spawn({
        let received = Arc::clone(&received);
        move || publish(&fanout, load, &received)
    });
    let mut receivers = JoinSet::new();
    for (index, stream) in streams.into_iter().enumerate() {
        let received = Arc::clone(&received);
        receivers.spawn(async move {
            let done = receive(stream, &received[index], load.events).await;
            // If the stream has ended early, the publisher must not wait for it.
            received[index].store(load.events, Ordering::Release);
            done
        });
    }
    let done = receivers.join_all().await;
    let took = began.elapsed();
    // It returns nothing, and has published everything.
    let _ = publisher.join();
    owner.delete_vm(VM).await?;
    done.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(took)
}

/// Takes all events of a stream, and stores how many there are so far.
async fn receive(
    mut stream: EventStream,
    received: &AtomicU64,
    wanted: u64,
) -> Result<(), StreamError> {
    let (mut told, mut lost) = (0, 0);
    while told + lost < wanted {
        match stream.next().await? {
            Some(Message::Batch { events, lost: more }) => {
                told += events.len() as u64;
                lost += more;
                received.store(told + lost, Ordering::Release);
            }
            _ => break,
        }
    }
    match told == wanted && lost == 0 {
        true => Ok(()),
        false => Err(StreamError::Events {
            wanted,
            received: told,
            lost,
        }),
    }
}

/// Publishes all events, each as the server publishes that of a hit.
fn publish(fanout: &Fanout, load: Load, received: &[AtomicU64]) {
    let mut hit = hit(load.contents);
    let slowest = || {
        let all = received.iter().map(|one| one.load(Ordering::Acquire));
        all.min().unwrap_or(load.events)
    };
    for number in 0..load.events {
        while number.saturating_sub(slowest()) > AHEAD {
            thread::sleep(PAUSE);
        }
        hit.tsc = Tsc(number);
        fanout.publish(&told(&hit, load.contents));
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
