//! Passing records to all sinks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::{Outcome, Record, Sink, SinkError};

/// Records that wait for a sink.
const WAITING: usize = 256;

/// Sinks that run.
#[derive(Debug, Default)]
pub struct Export {
    sinks: Vec<Running>,
    /// The time by which all sinks have to be done.
    deadline: watch::Sender<Option<Instant>>,
    /// Records that were to go to all sinks.
    records: u64,
}

#[derive(Debug)]
struct Running {
    name: &'static str,
    records: Sender<Arc<Record>>,
    task: JoinHandle<(u64, Option<SinkError>)>,
}

impl Export {
    /// Adds a sink, and starts it.
    pub fn add(&mut self, sink: impl Sink) {
        let (records, taken) = mpsc::channel(WAITING);
        self.sinks.push(Running {
            name: sink.name(),
            records,
            task: tokio::spawn(run(sink, taken, self.deadline.subscribe())),
        });
    }

    /// Passes a record to all sinks, when they have room. If this is dropped before, the record counts as failed for
    /// the sinks that have not got it.
    ///
    /// # Errors
    /// The name of a sink that can't go on. [`finish`](Self::finish) tells why.
    pub async fn hand(&mut self, record: Record) -> Result<(), &'static str> {
        self.records += 1;
        let record = Arc::new(record);
        for sink in &self.sinks {
            let sent = sink.records.send(Arc::clone(&record)).await;
            sent.map_err(|_| sink.name)?;
        }
        Ok(())
    }

    /// Lets all sinks finish. Sinks that depend on other systems have to do so within `limit`.
    pub async fn finish(self, limit: Duration) -> Vec<Outcome> {
        self.deadline.send_replace(Some(Instant::now() + limit));
        // All sinks learn that there are no more records before the first one is waited for.
        let sinks = self.sinks.into_iter();
        let finishing: Vec<_> = sinks.map(|sink| (sink.name, sink.task)).collect();
        let mut outcomes = Vec::new();
        for (name, task) in finishing {
            let ended = task.await;
            let (exported, error) =
                ended.unwrap_or_else(|error| (0, Some(SinkError(error.to_string()))));
            outcomes.push(Outcome {
                name,
                exported,
                failed: self.records.saturating_sub(exported),
                error,
            });
        }
        outcomes
    }
}

/// Runs a sink until there are no more records, or no more time. Returns how many records have reached their
/// destination.
async fn run(
    mut sink: impl Sink,
    mut records: Receiver<Arc<Record>>,
    mut deadline: watch::Receiver<Option<Instant>>,
) -> (u64, Option<SinkError>) {
    let error = tokio::select! {
        error = take_all(&mut sink, &mut records) => error,
        () = passed(deadline.clone()) => None,
    };
    // The task that passes records to it learns that it has ended.
    drop(records);
    let limit = match deadline.wait_for(Option::is_some).await {
        Ok(deadline) => *deadline,
        Err(_) => None,
    };
    let (exported, finished) = sink.finish(limit.unwrap_or_else(Instant::now)).await;
    (exported, error.or(finished.err()))
}

async fn take_all(sink: &mut impl Sink, records: &mut Receiver<Arc<Record>>) -> Option<SinkError> {
    loop {
        let record = tokio::select! {
            record = records.recv() => record?,
            error = sink.idle() => return Some(error),
        };
        if let Err(error) = sink.take(record).await {
            return Some(error);
        }
    }
}

/// Waits until the deadline has been set, and has passed.
async fn passed(mut deadline: watch::Receiver<Option<Instant>>) {
    let set = match deadline.wait_for(Option::is_some).await {
        Ok(set) => *set,
        Err(_) => None,
    };
    if let Some(set) = set {
        sleep_until(set).await;
    }
}

#[cfg(test)]
mod tests;
