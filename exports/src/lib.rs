//! Exporting probes' events to other systems.
//!
//! An [`Export`] passes each [`Record`] to all its sinks, each of which has a task of its own. A [`Sink`] that can't go
//! on makes the other sinks and the reader of events wait, so that the events' server counts events as lost. Each
//! record that a sink was given is either exported or counted as failed.

#![forbid(unsafe_code)]

mod export;
mod files;
mod nats;
mod otlp;
mod record;
mod sink;

#[cfg(test)]
mod samples;

pub use export::Export;
pub use files::{FileLimits, Parquet};
pub use nats::{Nats, NatsOptions};
pub use otlp::Otlp;
pub use record::Record;
pub use sink::{Outcome, Say, Sink, SinkError};
