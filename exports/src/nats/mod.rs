//! Exporting events to a stream of NATS JetStream.
//!
//! Messages are published without waiting for the answers to earlier ones, up to a limit, and kept until the server has
//! confirmed them. Each has an id. If a message is sent twice within the stream's duplicate window, the server stores
//! it once. After a longer time, the last message of its subject shows whether it is stored.

mod connection;
mod credentials;
mod options;
mod subject;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::publish::PublishAck;
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use connection::{Connection, Unsent};
pub use options::NatsOptions;
use subject::subject;

use crate::{Record, Say, Sink, SinkError};

/// Messages that are not confirmed yet. With this many, the sink takes no more.
const UNCONFIRMED: usize = 1024;
/// How long the sink waits before it asks a silent server again. The pause grows from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A stream of NATS JetStream.
pub struct Nats {
    options: NatsOptions,
    say: Say,
    /// The prefix of its messages' ids.
    run: String,
    /// The number of the next message.
    next: u64,
    /// Messages that are not confirmed, in their order.
    unconfirmed: VecDeque<Message>,
    connection: Option<Connection>,
    /// How long the sink waits before it connects again.
    pause: Duration,
    is_away: bool,
    /// True if the sink has reported that an event is too long.
    has_told_of_length: bool,
    exported: u64,
}

type Confirmation = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

struct Message {
    number: u64,
    subject: String,
    payload: Bytes,
    /// Its confirmation, once it is sent.
    sent: Option<Confirmation>,
}

impl Nats {
    /// Connects to a server, and makes the stream if there is none.
    ///
    /// # Errors
    /// No server answers, or the server doesn't permit it.
    pub async fn connect(options: NatsOptions, say: Say) -> Result<Self, SinkError> {
        let connection = Connection::open(&options).await;
        let connection =
            connection.map_err(|error| SinkError(format!("can't export to NATS: {error}")))?;
        Ok(Self {
            options,
            say,
            run: connection.unique(),
            next: 1,
            unconfirmed: VecDeque::new(),
            connection: Some(connection),
            pause: FIRST_PAUSE,
            is_away: false,
            has_told_of_length: false,
            exported: 0,
        })
    }

    /// Sends all messages that aren't sent yet.
    async fn send(&mut self) {
        while let Err(reason) = self.try_send().await {
            self.lose(&reason).await;
        }
    }

    /// Waits until the first message is confirmed.
    async fn confirm(&mut self) {
        self.send().await;
        if let Err(reason) = self.try_confirm().await {
            self.lose(&reason).await;
        }
    }

    async fn try_send(&mut self) -> Result<(), String> {
        if self.connection.is_none() {
            let connection = Connection::open(&self.options).await?;
            self.forget_stored(&connection).await;
            self.connection = Some(connection);
        }
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        // Messages that are sent come first.
        let mut at = self
            .unconfirmed
            .partition_point(|message| message.sent.is_some());
        while let Some(message) = self.unconfirmed.get_mut(at) {
            let id = format!("{}-{}", self.run, message.number);
            let payload = message.payload.clone();
            match connection.publish(&message.subject, &id, payload).await {
                Ok(confirmation) => {
                    message.sent = Some(confirmation.into_future());
                    at += 1;
                }
                Err(Unsent::Lost(reason)) => return Err(reason),
                // No server will ever take the message, so it counts as failed.
                Err(Unsent::TooLong) => {
                    let length = message.payload.len();
                    self.unconfirmed.remove(at);
                    if !std::mem::replace(&mut self.has_told_of_length, true) {
                        (self.say)(&format!(
                            "nats takes no event of {length} bytes: raise its `max_payload`, or have fewer arguments"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts messages as exported that are in the stream although their connection was lost.
    async fn forget_stored(&mut self, connection: &Connection) {
        let subjects = self.unconfirmed.iter().map(|message| &message.subject);
        let mut last: HashMap<String, u64> = subjects.map(|of| (of.clone(), 0)).collect();
        for (subject, number) in &mut last {
            let id = connection.last_id(subject).await;
            *number = id.and_then(|id| self.number(&id)).unwrap_or(0);
        }
        let before = self.unconfirmed.len();
        self.unconfirmed.retain(|message| {
            last.get(&message.subject)
                .is_none_or(|last| *last < message.number)
        });
        self.exported += (before - self.unconfirmed.len()) as u64;
    }

    /// Returns the number of a message of this sink, by its id.
    fn number(&self, id: &str) -> Option<u64> {
        let (run, number) = id.rsplit_once('-')?;
        (run == self.run).then(|| number.parse().ok())?
    }

    async fn try_confirm(&mut self) -> Result<(), String> {
        let (Some(first), Some(connection)) = (self.unconfirmed.front_mut(), &self.connection)
        else {
            return Ok(());
        };
        let Some(sent) = &mut first.sent else {
            return Ok(());
        };
        let answer = tokio::select! {
            biased;
            answer = sent => answer,
            reason = connection.lost() => return Err(reason),
        };
        answer.map_err(|error| match error.kind() {
            PublishErrorKind::StreamNotFound => format!(
                "no stream takes {}: add vmprobe.> to the subjects of {}",
                first.subject, self.options.stream
            ),
            _ => error.to_string(),
        })?;
        self.unconfirmed.pop_front();
        self.exported += 1;
        self.pause = FIRST_PAUSE;
        if std::mem::take(&mut self.is_away) {
            (self.say)("nats is back");
        }
        Ok(())
    }

    /// Drops the connection, and waits a little.
    async fn lose(&mut self, reason: &str) {
        self.connection = None;
        for message in &mut self.unconfirmed {
            message.sent = None;
        }
        if !std::mem::replace(&mut self.is_away, true) {
            (self.say)(&format!("nats is away: {reason}"));
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST_PAUSE);
        sleep(pause).await;
    }
}

impl Sink for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    async fn take(&mut self, record: Arc<Record>) -> Result<(), SinkError> {
        let payload = serde_json::to_vec(&*record)
            .map_err(|error| SinkError(format!("can't write an event as JSON: {error}")))?;
        self.unconfirmed.push_back(Message {
            number: self.next,
            subject: subject(&record),
            payload: payload.into(),
            sent: None,
        });
        self.next += 1;
        self.send().await;
        while self.unconfirmed.len() >= UNCONFIRMED {
            self.confirm().await;
        }
        Ok(())
    }

    async fn idle(&mut self) -> SinkError {
        while !self.unconfirmed.is_empty() {
            self.confirm().await;
        }
        std::future::pending().await
    }

    async fn finish(mut self, deadline: Instant) -> (u64, Result<(), SinkError>) {
        let all = async {
            while !self.unconfirmed.is_empty() {
                self.confirm().await;
            }
        };
        let _what_is_left_is_told = timeout_at(deadline, all).await;
        let left = self.unconfirmed.len();
        let ended = match left {
            0 => Ok(()),
            _ => Err(SinkError(format!(
                "{left} events are not confirmed by nats: whether they are in the stream {} isn't known",
                self.options.stream
            ))),
        };
        (self.exported, ended)
    }
}
