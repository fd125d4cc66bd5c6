//! What a fleet is asked for, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use vmprobe_proto::v1::{Ending, Event, Probe, ProbeSpec};

use crate::{Client, Credentials};

/// A server, by the name that its events have.
#[derive(Clone, Debug)]
pub struct Host {
    /// The name.
    pub name: String,
    /// Its address, as [`Client::connect`] takes it.
    pub endpoint: String,
    /// Who this client is there.
    pub credentials: Credentials,
}

/// What to follow on all servers.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The probes, which each VM gets.
    pub probes: Vec<ProbeSpec>,
    /// A pattern of the VMs' names, with `*` and `?`.
    pub vms: String,
    /// How long events wait for those of a VM that is silent, as its server is away or slow.
    pub window: Duration,
    /// How long servers keep probes and events of this client when it is cut off.
    pub linger: Duration,
}

/// A VM that is followed.
#[derive(Clone, Debug)]
pub struct FleetVm {
    /// The name of its server.
    pub host: Arc<str>,
    /// Its own name.
    pub name: String,
    /// The connection to its server, as it was when the VM was found.
    pub client: Client,
    /// Hertz of the guest's time stamp counter.
    pub tsc_hz: u64,
    /// vCPUs of the guest.
    pub vcpus: u32,
    /// The probes that it has got.
    pub probes: Vec<Probe>,
}

/// What a fleet tells.
#[derive(Clone, Debug)]
pub enum FleetMessage {
    /// The probes are registered in a VM: every later hit is told or counted as lost.
    Joined(Arc<FleetVm>),
    /// A probe was hit.
    Event {
        /// The VM.
        vm: Arc<FleetVm>,
        /// When, in nanoseconds since 1970 by the clock of the VM's host.
        unix_ns: u64,
        /// What the probe tells.
        event: Box<Event>,
    },
    /// Events were lost, as this client read too slowly.
    Lost {
        /// The VM.
        vm: Arc<FleetVm>,
        /// How many.
        count: u64,
    },
    /// What happened meanwhile in a VM isn't known: its server has kept it no longer. The counts of the probes tell how
    /// much it was.
    Gap {
        /// The VM.
        vm: Arc<FleetVm>,
        /// Why.
        reason: String,
    },
    /// A guest has ended.
    Ended {
        /// The VM.
        vm: Arc<FleetVm>,
        /// How.
        ending: Ending,
    },
    /// A VM takes no probes of this client, or no more.
    Refused {
        /// The server.
        host: Arc<str>,
        /// The VM.
        vm: String,
        /// Why.
        reason: String,
    },
    /// A server doesn't answer, or no more. It is asked again and again.
    Away {
        /// The server.
        host: Arc<str>,
        /// Why.
        reason: String,
    },
    /// A server that was away answers.
    Back {
        /// The server.
        host: Arc<str>,
    },
}

/// What the task of a VM or of a server tells.
#[derive(Debug)]
pub(super) enum Told {
    /// What isn't put in order.
    Message(FleetMessage),
    /// An event of a source.
    Event {
        source: u64,
        unix_ns: u64,
        event: FleetMessage,
        /// There are so many of a source at most.
        place: OwnedSemaphorePermit,
    },
    /// A source will tell events that are later than this is heard.
    Begins {
        source: u64,
        unix_ns: u64,
        heard: oneshot::Sender<()>,
    },
    /// A source has told all events up to this time.
    Reached { source: u64, unix_ns: u64 },
    /// Nobody knows when a source tells something.
    Silent { source: u64 },
}
