//! The way to a receiver of OpenTelemetry's protocol (OTLP 1.x), for what sends metrics, logs or events.
//!
//! [`OtlpOptions`] say where it is and what it is shown, and [`OtlpArgs`] are these on a command line; [`Sender`] brings a request there, by gRPC or by HTTP, and says
//! whether it was taken, refused, or should come again ([`SendError`]). What is sent, when, and what becomes of what
//! can't be sent is up to who sends it. The messages are those of `opentelemetry-proto`.

mod args;
mod backoff;
mod dial;
mod error;
mod grpc;
mod headers;
mod http1;
mod options;
mod resource;
mod send;
mod standing;
mod values;

pub use opentelemetry_proto::tonic as proto;

pub use args::OtlpArgs;
pub use backoff::Backoff;
pub use error::{OtlpError, SendError};
pub use headers::Header;
pub use options::{OtlpOptions, Protocol, endpoint};
pub use resource::{host_name, resource};
pub use send::{Accepted, Sender, Signal};
pub use standing::{Change, Standing};
pub use values::{attribute, json, text, unix_nanos};
