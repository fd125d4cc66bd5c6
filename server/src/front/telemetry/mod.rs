//! The server's metrics and its log, sent to a receiver of OpenTelemetry's protocol.
//!
//! A thread of its own sends them, so that neither calls nor guests wait for a receiver. Metrics are those of
//! `/metrics` ([`convert`]); records of the log wait in a bounded queue ([`logs`]). What is given up is counted
//! ([`sent`](super::sent)). When a receiver goes, refuses or comes back, that is logged once, in a record that isn't
//! sent.

mod convert;
mod logs;
mod metrics;
mod options;
mod receiver;
mod starts;
mod task;

use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio::task::JoinSet;
use vmprobe_otlp::{OtlpError, Sender, host_name, resource};

use super::sent::{Counts, Signal};
use super::watch::Watch;
use crate::log;

pub use options::TelemetryOptions;

use receiver::Receiver;
use task::Task;

/// Why metrics and logs can't be sent.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The options can't be used.
    #[error(transparent)]
    Options(#[from] OtlpError),
    /// The host has no thread.
    #[error("the host has no thread to send metrics and logs by (--otlp): {0}")]
    Thread(io::Error),
}

/// The tasks that send.
#[derive(Debug, Default)]
pub struct Telemetry {
    metrics: Option<Task>,
    logs: Option<Task>,
}

impl Telemetry {
    /// Starts to send the metrics of a watch, and the records of the counted queue. `address` is the server's first
    /// one.
    ///
    /// # Errors
    /// See [`TelemetryError`].
    pub fn start(
        options: &TelemetryOptions,
        address: &str,
        watch: &Arc<Watch>,
        counts: &Counts,
    ) -> Result<Self, TelemetryError> {
        let Some(receiver) = options.receiver.options() else {
            return Ok(Self::default());
        };
        Sender::check(&receiver)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_start(log::exempt_this_thread)
            .build()
            .map_err(TelemetryError::Thread)?;
        let host = host_name();
        // The instance is the same after a restart of the server, so that receivers continue their series.
        let instance = format!("{host}/{address}");
        let version = env!("CARGO_PKG_VERSION");
        let resource = resource("vmprobed", version, &instance, Some(&host));
        let mut this = Self::default();
        let metrics = counts.metrics().map(|count| {
            let (task, stop) = Task::new();
            this.metrics = Some(task);
            (Arc::clone(count), Arc::clone(watch), stop)
        });
        let logs = counts.logs().map(|(count, records)| {
            let (task, stop) = Task::new();
            this.logs = Some(task);
            (Arc::clone(count), records.clone(), stop)
        });
        let every = options.interval();
        let run = async move {
            let receiver = |signal, count| Receiver::new(&receiver, signal, count);
            let mut tasks = JoinSet::new();
            if let Some((count, watch, stop)) = metrics {
                let receiver = receiver(Signal::Metrics, count)?;
                let resource = resource.clone();
                tasks.spawn(metrics::run(receiver, resource, watch, every, stop));
            }
            if let Some((count, records, stop)) = logs {
                let receiver = receiver(Signal::Logs, count)?;
                tasks.spawn(logs::run(receiver, resource, records, stop));
            }
            tasks.join_all().await;
            Ok::<_, OtlpError>(())
        };
        let thread = std::thread::Builder::new().name("telemetry".to_owned());
        let started = thread.spawn(move || {
            log::exempt_this_thread();
            if let Err(error) = runtime.block_on(run) {
                tracing::error!("no metrics and no logs are sent: {error}");
            }
        });
        started.map_err(TelemetryError::Thread)?;
        Ok(this)
    }

    /// Sends metrics a last time.
    pub async fn end_metrics(&mut self) {
        if let Some(task) = self.metrics.take() {
            task.end().await;
        }
    }

    /// Sends the rest of the log, as far as that is possible in some seconds.
    pub async fn end(mut self) {
        self.end_metrics().await;
        if let Some(task) = self.logs.take() {
            task.end().await;
        }
    }
}
