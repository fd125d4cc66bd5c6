//! The interface of sinks.

use std::sync::Arc;

use thiserror::Error;
use tokio::time::Instant;

use crate::Record;

/// Reports something about a sink to people, such as that its server is away.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Why a sink can't go on, and how to solve it.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SinkError(pub String);

/// The result of a sink's work.
#[derive(Debug)]
pub struct Outcome {
    /// The sink's name.
    pub name: &'static str,
    /// Events that have reached their destination.
    pub exported: u64,
    /// Events that have not reached it, or of which that isn't known.
    pub failed: u64,
    /// Why the sink didn't go on, or didn't deliver everything.
    pub error: Option<SinkError>,
}

/// Delivers events to one destination.
pub trait Sink: Send + 'static {
    /// Returns the sink's name in messages, such as `nats`.
    fn name(&self) -> &'static str;

    /// Takes a record, and returns when it can take another one. A sink whose server is away waits here until it is
    /// back. If this is dropped before its end, [`finish`](Self::finish) is the next call.
    ///
    /// # Errors
    /// The sink can't go on.
    fn take(&mut self, record: Arc<Record>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Does due work while there is no record. It is dropped when a record comes, and returns only for an error.
    fn idle(&mut self) -> impl Future<Output = SinkError> + Send {
        std::future::pending()
    }

    /// Delivers what it has taken, by the deadline if that depends on other systems. It is called after errors as well.
    /// Returns how many events have been delivered, of all that it has ever taken, and why others haven't.
    fn finish(self, deadline: Instant)
    -> impl Future<Output = (u64, Result<(), SinkError>)> + Send;
}
