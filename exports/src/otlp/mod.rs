//! Exporting events to a receiver of OpenTelemetry's protocol, each as a log record.
//!
//! Records are collected for a moment and sent together, one request at a time. If the receiver is away, the records
//! are sent again later, in the same order, and the sink takes no more meanwhile. So a receiver gets each event at
//! least once.

mod request;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use vmprobe_otlp::{Accepted, Backoff, Change, OtlpOptions, SendError, Sender, Standing};

use crate::{Record, Say, Sink, SinkError};

/// The most records in a request. With a stack, each has some kilobytes, and receivers take 4 MiB.
const BATCH: usize = 512;
/// How long fewer records wait for others.
const DELAY: Duration = Duration::from_millis(500);

/// A receiver.
pub struct Otlp {
    say: Say,
    url: String,
    /// `None` while a request is under way.
    sender: Option<Sender>,
    /// The request under way. It goes on even if the task that waits for it is dropped.
    sending: Option<Sending>,
    /// Records that are sent, until they are taken or refused.
    under_way: Vec<Arc<Record>>,
    /// The records of the next request, and since when the first one waits.
    waiting: Vec<Arc<Record>>,
    since: Option<Instant>,
    /// When the receiver may be asked again.
    pause: Option<Instant>,
    backoff: Backoff,
    standing: Standing,
    exported: u64,
    refused: u64,
    /// The last reason why some records weren't taken.
    reason: String,
}

type Sending = Pin<Box<dyn Future<Output = (Sender, Result<Accepted, SendError>)> + Send>>;

impl Otlp {
    /// Makes a sink for a receiver, without connecting to it.
    ///
    /// # Errors
    /// The files that the options name can't be used.
    pub fn new(options: &OtlpOptions, say: Say) -> Result<Self, SinkError> {
        let sender = Sender::new(options).map_err(|error| SinkError(error.to_string()))?;
        Ok(Self {
            say,
            url: sender.to_string(),
            sender: Some(sender),
            sending: None,
            under_way: Vec::new(),
            waiting: Vec::new(),
            since: None,
            pause: None,
            backoff: Backoff::default(),
            standing: Standing::default(),
            exported: 0,
            refused: 0,
            reason: String::new(),
        })
    }

    /// Waits until the request under way, if any, is taken or refused. If this is dropped, the next call goes on from
    /// there.
    async fn settle(&mut self) {
        while !self.under_way.is_empty() {
            if let Some(pause) = self.pause {
                sleep_until(pause).await;
                self.pause = None;
            }
            if let Some(mut sender) = self.sender.take() {
                let request = request::of(&self.under_way);
                self.sending = Some(Box::pin(async move {
                    let sent = sender.send(request).await;
                    (sender, sent)
                }));
            }
            let Some(sending) = &mut self.sending else {
                return;
            };
            let (sender, sent) = sending.await;
            self.sending = None;
            self.sender = Some(sender);
            self.learn(&sent);
        }
    }

    fn learn(&mut self, sent: &Result<Accepted, SendError>) {
        let count = self.under_way.len() as u64;
        match sent {
            Ok(accepted) => {
                let refused = accepted.refused.min(count);
                self.exported += count - refused;
                self.refused += refused;
                if refused > 0 {
                    self.reason.clone_from(&accepted.message);
                }
            }
            Err(SendError::Refused { why }) => {
                self.refused += count;
                self.reason.clone_from(why);
            }
            Err(SendError::Away { why, again }) => {
                self.reason.clone_from(why);
                self.pause = Some(Instant::now() + self.backoff.next(*again));
            }
        }
        if !matches!(sent, Err(SendError::Away { .. })) {
            self.under_way.clear();
            self.backoff.reset();
        }
        let url = &self.url;
        match self.standing.learn(sent) {
            Some(Change::Away) => (self.say)(&format!("otlp is away ({url}): {}", self.reason)),
            Some(Change::Refusing) => {
                (self.say)(&format!("otlp refuses events ({url}): {}", self.reason));
            }
            Some(Change::Back) => (self.say)(&format!("otlp is back ({url})")),
            None => {}
        }
    }

    /// Makes the waiting records the next request, once the request before is settled.
    async fn send(&mut self) {
        self.settle().await;
        self.under_way = std::mem::take(&mut self.waiting);
        self.since = None;
    }
}

impl Sink for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    async fn take(&mut self, record: Arc<Record>) -> Result<(), SinkError> {
        self.since.get_or_insert_with(Instant::now);
        self.waiting.push(record);
        if self.waiting.len() >= BATCH {
            self.send().await;
        }
        Ok(())
    }

    async fn idle(&mut self) -> SinkError {
        loop {
            self.settle().await;
            match self.since {
                Some(since) => sleep_until(since + DELAY).await,
                None => std::future::pending().await,
            }
            self.send().await;
        }
    }

    async fn finish(mut self, deadline: Instant) -> (u64, Result<(), SinkError>) {
        let all = async {
            self.send().await;
            self.settle().await;
        };
        let in_time = timeout_at(deadline, all).await;
        let left = self.under_way.len() + self.waiting.len();
        let (url, reason) = (&self.url, &self.reason);
        let error = match (in_time, self.refused) {
            (Err(_), _) => Some(format!(
                "{url} has not taken the last {left} events: {reason}"
            )),
            (Ok(()), 1..) => Some(format!(
                "{url} has refused {} events: {reason}",
                self.refused
            )),
            (Ok(()), 0) => None,
        };
        (
            self.exported,
            error.map_or(Ok(()), |error| Err(SinkError(error))),
        )
    }
}

#[cfg(test)]
mod tests;
