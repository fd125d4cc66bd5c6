//! Sending metrics, logs or events to a receiver of OpenTelemetry's protocol (OTLP 1.x).
//!
//! [`OtlpOptions`] have the receiver's address and the credentials for it, and [`OtlpArgs`] are these on a command
//! line. [`Sender`] sends a request, by gRPC or by HTTP, and returns whether it was taken, refused, or should be sent
//! again ([`SendError`]). The program itself decides what to send, when, and what to do when sending fails. The
//! messages are those of `opentelemetry-proto`.

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
