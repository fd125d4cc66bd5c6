//! What it costs to observe a server (SV06): its metrics and the requests of its status page, for a VM with many
//! probes. The whole server runs in this process, with its client.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use vmprobe_client::v1::ProbeOrder;
use vmprobe_client::{Client, ClientError, spec};

use crate::in_process::{InProcessError, Running, Transport, create_guest};
use crate::report::Entry;
use crate::stops::{FUNCTION, Loop, kernel};

const VM: &str = "watched";
/// Probes of the VM.
const PROBES: usize = 1000;
/// Requests of each kind.
const REQUESTS: u32 = 500;
/// The paths that are requested, and the client that requests them.
const PATHS: [(&str, &str); 2] = [
    ("/metrics", "a scrape of the metrics"),
    (
        "/api/status?vm=watched",
        "what an open status page asks for every 2 s",
    ),
];

/// Why it was not measured.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// There is no server or no guest.
    #[error(transparent)]
    InProcess(#[from] InProcessError),
    /// A probe isn't one.
    #[error("the probe {0} is not understood")]
    Spec(String),
    /// The server doesn't answer.
    #[error("the server doesn't answer for its metrics")]
    Http(#[from] hyper::Error),
    /// It has another answer.
    #[error("the server answers {1} for {0}")]
    Answer(&'static str, StatusCode),
}

impl From<ClientError> for WatchError {
    fn from(error: ClientError) -> Self {
        Self::InProcess(error.into())
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> WatchError {
    move |error| InProcessError::Io(what, error).into()
}

/// Measures both.
///
/// # Errors
/// See [`WatchError`].
pub fn measure() -> Result<Vec<Entry>, WatchError> {
    let runtime = Runtime::new().map_err(failed("start a runtime"))?;
    runtime.block_on(async {
        let running = Running::start(Transport::Plain, None).await?;
        let done = looks(&running).await;
        running.end().await;
        done
    })
}

async fn looks(running: &Running) -> Result<Vec<Entry>, WatchError> {
    let client = running.connect().await?;
    let code = kernel(Loop::Halts, PROBES).map_err(InProcessError::from)?;
    create_guest(&client, VM, &code).await?;
    client.start_vm(VM).await?;
    let specs = (0..PROBES).map(|index| {
        let text = format!("p {FUNCTION}{index}");
        spec::parse(&text).map_err(|_| WatchError::Spec(text))
    });
    let specs = specs.collect::<Result<_, _>>()?;
    client.register_batch(VM, specs).await?;
    let address = running.metrics.trim_start_matches("http://");
    let connection = TcpStream::connect(address).await;
    let connection = connection.map_err(failed("connect to the metrics"))?;
    let (mut sender, connection) = handshake(TokioIo::new(connection)).await?;
    let talking = tokio::spawn(connection);
    let mut entries = Vec::new();
    for (path, what) in PATHS {
        let stops = stops(&client).await?;
        // The first answer does work whose results later ones reuse.
        let bytes = get(&mut sender, path).await?;
        let began = processor_time();
        for _ in 0..REQUESTS {
            get(&mut sender, path).await?;
        }
        let each = (processor_time() - began) / REQUESTS;
        let stops = self::stops(&client).await? - stops;
        let how = format!(
            "processor time of {what}, of a VM with {PROBES} probes, server and client together; mean of {REQUESTS}"
        );
        let note = format!("{bytes} bytes; {stops} stops of the guest");
        entries
            .push(Entry::native("SV06", (each.as_secs_f64() * 1e6).round(), "us", how).note(note));
    }
    talking.abort();
    client.delete_vm(VM).await?;
    Ok(entries)
}

/// Returns the number of bytes of the answer.
async fn get(
    sender: &mut SendRequest<Empty<Bytes>>,
    path: &'static str,
) -> Result<usize, WatchError> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(HOST, http::HeaderValue::from_static("localhost"));
    sender.ready().await?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    match status {
        StatusCode::OK => Ok(body.len()),
        other => Err(WatchError::Answer(path, other)),
    }
}

/// Returns how often the guest was stopped so far.
async fn stops(client: &Client) -> Result<u64, WatchError> {
    let stats = client.vm_stats(VM, 0, ProbeOrder::Unspecified, 0).await?;
    Ok(stats.stop_lengths.iter().sum())
}

/// The CPU time of this process so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to `time` alone, which is of the type that it expects (clock_gettime(2)).
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    debug_assert_eq!(result, 0);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
