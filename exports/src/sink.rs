//! What takes events.

use std::sync::Arc;

use thiserror::Error;
use tokio::time::Instant;

use crate::Record;

/// Tells people something of a sink, such as that its server is away.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Why a sink can't go on, and what to do.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SinkError(pub String);

/// What has become of a sink's events.
#[derive(Debug)]
pub struct Outcome {
    /// The sink's name.
    pub name: &'static str,
    /// Events that are where they were to go.
    pub exported: u64,
    /// Events that are not, or that nobody knows of.
    pub failed: u64,
    /// Why the sink didn't go on, or didn't bring everything there.
    pub error: Option<SinkError>,
}

/// Takes events to one place.
pub trait Sink: Send + 'static {
    /// Its name in messages, such as `nats`.
    fn name(&self) -> &'static str;

    /// Takes a record, and returns when it can take another one. A sink whose server is away waits here until it is back.
    /// It is dropped half-way only if [`finish`](Self::finish) comes next.
    ///
    /// # Errors
    /// The sink can't go on.
    fn take(&mut self, record: Arc<Record>) -> impl Future<Output = Result<(), SinkError>> + Send;

    /// Does what is due while there is no record. It is dropped when a record comes, and ends only with an error.
    fn idle(&mut self) -> impl Future<Output = SinkError> + Send {
        std::future::pending()
    }

    /// Brings there what it has taken, by the deadline if it depends on others. It is called after errors as well.
    /// Tells how many events are there, of all that it has ever taken, and why others aren't.
    fn finish(self, deadline: Instant)
    -> impl Future<Output = (u64, Result<(), SinkError>)> + Send;
}
