//! Events of probes on their way to other engines.
//!
//! An [`Export`] hands each [`Record`] to all its sinks, each of which has a task of its own. A [`Sink`] that can't go on
//! makes the others wait, and whoever reads the events: their server then counts what is lost. What a sink was handed is
//! exported, or counted as failed.

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
