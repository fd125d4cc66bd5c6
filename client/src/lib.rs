//! A typed, asynchronous client of a vmprobe server.
//!
//! [`Client::connect`] opens a connection; its methods are the calls of the `vmprobe.v1` protocol,
//! with errors that say what went wrong and what to do about it. [`Client::events`] follows the hits
//! of probes, [`Client::attach_console`] a guest's console.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use vmprobe_client::{Client, Message, spec};
//!
//! let client = Client::connect("unix:/run/vmprobe/vmprobed.sock").await?;
//! client.register_probes("guest", vec![spec::parse("vfs_read")?]).await?;
//! let mut events = client.events("guest", Vec::new()).await?;
//! while let Some(message) = events.next().await? {
//!     match message {
//!         Message::Batch { lost, events } => println!("{} hits, {lost} lost", events.len()),
//!         Message::Progress { .. } => {}
//!         Message::Ended(ending) => println!("the guest ended: {}", ending.detail),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The library never prints. [`words`] has texts for the protocol's numbers.

mod client;
mod clock;
mod connection;
mod console;
mod debug;
mod dump;
mod error;
mod events;
pub mod fleet;
mod hits;
mod images;
mod probes;
mod session;
mod symbols;
pub mod words;

pub use client::{Client, EventOptions};
pub use clock::HostClock;
pub use connection::{Credentials, default_endpoint};
pub use console::{ConsoleChunk, ConsoleInput, ConsoleOutput};
pub use debug::{DebugEvent, DebugSession};
pub use dump::{Dump, DumpPart};
pub use error::ClientError;
pub use events::{EventStream, Message};
pub use hits::{HeldHits, HitMessage};
pub use images::{IMAGE, OnProgress, PushError, PushProgress, image_path};
pub use probes::{Blacklist, ProbeBatch};
pub use session::{DisabledProbes, Session};
pub use vmprobe_proto::v1;
pub use vmprobe_spec as spec;
