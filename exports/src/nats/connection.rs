//! One connection to NATS, from its beginning to its first break.
//!
//! The library's client connects again by itself, and then publishes messages that it had not written yet, but not
//! those that were lost on the way. That would put later events before earlier ones. So each connection has a client in
//! a runtime of its own, which ends at the first break. The sink then opens another connection and sends everything
//! again, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Event, ServerAddr};
use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::credentials;
use super::options::NatsOptions;
use super::subject::PREFIX;

/// Longer than the runtime of a lost connection lives.
const NEVER: Duration = Duration::from_secs(3600);

/// The library's client, as long as it is connected.
pub(super) struct Connection {
    _runtime: OwnRuntime,
    context: Context,
    stream: Stream,
    is_lost: watch::Receiver<bool>,
}

/// Why a message was not published.
pub(super) enum Unsent {
    /// The server takes no message of that length.
    TooLong,
    /// The connection can't be used any more.
    Lost(String),
}

impl Connection {
    /// Connects, and makes the stream if there is none.
    pub async fn open(options: &NatsOptions) -> Result<Self, String> {
        let runtime = OwnRuntime::start()?;
        let (lost, is_lost) = watch::channel(false);
        let (context, stream) = runtime.run(begin(options.clone(), lost)).await?;
        Ok(Self {
            _runtime: runtime,
            context,
            stream,
            is_lost,
        })
    }

    /// Returns a name that no other client has.
    pub fn unique(&self) -> String {
        let inbox = self.context.client().new_inbox();
        inbox
            .rsplit('.')
            .next()
            .unwrap_or(inbox.as_str())
            .to_owned()
    }

    /// Publishes JSON. The stream stores each id once.
    pub async fn publish(
        &self,
        subject: &str,
        id: &str,
        payload: Bytes,
    ) -> Result<PublishAckFuture, Unsent> {
        let mut headers = HeaderMap::new();
        headers.insert("Content-Type", "application/json");
        headers.insert(NATS_MESSAGE_ID, id);
        let message = PublishMessage::build().payload(payload).headers(headers);
        let sent = self.context.send_publish(subject.to_owned(), message).await;
        sent.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Unsent::TooLong,
            _ => Unsent::Lost(error.to_string()),
        })
    }

    /// Returns the id of the last message of a subject in the stream.
    pub async fn last_id(&self, subject: &str) -> Option<String> {
        let last = self.stream.get_last_raw_message_by_subject(subject).await;
        let id = last.ok()?.headers.get(NATS_MESSAGE_ID)?.to_string();
        Some(id)
    }

    /// Waits until the connection breaks.
    pub async fn lost(&self) -> String {
        let mut is_lost = self.is_lost.clone();
        let _or_its_client_has_gone = is_lost.wait_for(|is_lost| *is_lost).await;
        "the connection is lost".into()
    }
}

/// A runtime whose tasks are dropped together. It is only `None` while it is being dropped.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn start() -> Result<Self, String> {
        let started = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nats")
            .enable_all()
            .build();
        let runtime = started.map_err(|error| format!("can't start a thread for it: {error}"))?;
        Ok(Self(Some(runtime)))
    }

    async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let Some(runtime) = &self.0 else {
            return Err("its thread has ended".into());
        };
        let ended = runtime.spawn(task).await;
        ended.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Connects. Runs in the runtime of the connection.
async fn begin(
    options: NatsOptions,
    lost: watch::Sender<bool>,
) -> Result<(Context, Stream), String> {
    let servers = options.servers.iter().map(|server| {
        let address = server.parse::<ServerAddr>();
        address.map_err(|error| format!("not an address of NATS: {error}"))
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    let was_connected = Arc::new(AtomicBool::new(false));
    let is_first = Arc::clone(&was_connected);
    let lost = Arc::new(lost);
    let client = credentials::connect_options(&options, &servers)
        .await?
        .name(PREFIX)
        .reconnect_delay_callback(move |_| match was_connected.load(Ordering::Acquire) {
            true => NEVER,
            false => Duration::ZERO,
        })
        .event_callback(move |event| {
            let lost = Arc::clone(&lost);
            async move {
                if let Event::Disconnected | Event::Closed = event {
                    lost.send_replace(true);
                }
            }
        })
        .connect(servers)
        .await
        .map_err(|error| error.to_string())?;
    is_first.store(true, Ordering::Release);
    let context = jetstream::new(client);
    let name = options.stream;
    let config = Config {
        name: name.clone(),
        subjects: vec![format!("{PREFIX}.>")],
        description: Some("events of vmprobe".into()),
        ..Config::default()
    };
    let stream = context.get_or_create_stream(config).await;
    let stream = stream.map_err(|error| {
        format!(
            "can't find or make the stream {name}: {error}; is JetStream enabled there (nats-server -js), and may this \
             user use it?"
        )
    })?;
    Ok((context, stream))
}
