//! Counts of the metrics and logs that are sent to a receiver ([`telemetry`](super::telemetry)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use clap::ValueEnum;

use crate::log::Records;

/// A kind of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Signal {
    /// What `/metrics` tells.
    Metrics,
    /// The log, with the calls of the audit log.
    Logs,
}

impl Signal {
    /// Returns the kind's name in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// The counts of what is sent.
#[derive(Debug, Default)]
pub struct Counts {
    /// The counts of metrics, in data points, if they are sent.
    metrics: Option<Arc<Count>>,
    /// The counts of logs, in records, if they are sent.
    logs: Option<Arc<Count>>,
    /// The queue of log records.
    records: Option<Records>,
}

/// The counts of one kind.
#[derive(Debug)]
pub struct Count {
    sent: AtomicU64,
    dropped: AtomicU64,
    is_taken: AtomicBool,
}

/// The counts of one kind, as metrics show them.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub signal: &'static str,
    pub sent: u64,
    pub dropped: u64,
    /// True if the receiver has taken the last request.
    pub is_taken: bool,
}

impl Count {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            is_taken: AtomicBool::new(true),
        })
    }

    /// Adds to the number that was taken.
    pub fn add_sent(&self, count: u64) {
        self.sent.fetch_add(count, Relaxed);
    }

    /// Adds to the number that was given up.
    pub fn add_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Relaxed);
    }

    /// Returns the number that was given up so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Sets whether the receiver has taken the last request.
    pub fn set_taken(&self, is_taken: bool) {
        self.is_taken.store(is_taken, Relaxed);
    }
}

impl Counts {
    /// Makes counts that are zero: of metrics if they are sent, and of logs if there is a queue of
    /// records.
    pub fn new(metrics: bool, records: Option<Records>) -> Arc<Self> {
        Arc::new(Self {
            metrics: metrics.then(Count::new),
            logs: records.as_ref().map(|_| Count::new()),
            records,
        })
    }

    /// Returns the counts of metrics, if they are sent.
    pub fn metrics(&self) -> Option<&Arc<Count>> {
        self.metrics.as_ref()
    }

    /// Returns the counts of logs and their queue, if they are sent.
    pub fn logs(&self) -> Option<(&Arc<Count>, &Records)> {
        self.logs.as_ref().zip(self.records.as_ref())
    }

    /// Returns how many records wait for the receiver, if logs are sent.
    pub fn waiting(&self) -> Option<usize> {
        self.records.as_ref().map(Records::waiting)
    }

    /// Returns the counts of each kind that is sent.
    pub fn told(&self) -> impl Iterator<Item = Told> {
        let queue = self.records.as_ref().map_or(0, Records::dropped);
        let kinds = [
            (Signal::Metrics, &self.metrics, 0),
            (Signal::Logs, &self.logs, queue),
        ];
        kinds.into_iter().filter_map(|(signal, count, before)| {
            let count = count.as_ref()?;
            Some(Told {
                signal: signal.name(),
                sent: count.sent.load(Relaxed),
                dropped: before + count.dropped(),
                is_taken: count.is_taken.load(Relaxed),
            })
        })
    }
}
