//! The requests to a fleet, and its messages.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use vmprobe_proto::v1::{Ending, Event, Probe, ProbeSpec};

use crate::{Client, Credentials};

/// A server, with the name under which its events are reported.
#[derive(Clone, Debug)]
pub struct Host {
    /// The name.
    pub name: String,
    /// Its address, as [`Client::connect`] takes it.
    pub endpoint: String,
    /// This client's credentials for the server.
    pub credentials: Credentials,
}

/// What a fleet follows on all servers.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The probes, which each VM gets.
    pub probes: Vec<ProbeSpec>,
    /// A pattern of the VMs' names, with `*` and `?`.
    pub vms: String,
    /// How long events wait for a VM that is silent because its server is away or slow.
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

/// A message of a fleet.
#[derive(Clone, Debug)]
pub enum FleetMessage {
    /// The probes are registered in a VM. Every later hit is reported or counted as lost.
    Joined(Arc<FleetVm>),
    /// A probe was hit.
    Event {
        /// The VM.
        vm: Arc<FleetVm>,
        /// When, in nanoseconds since 1970 by the clock of the VM's host.
        unix_ns: u64,
        /// The probe's event.
        event: Box<Event>,
    },
    /// Events were lost, as this client read too slowly.
    Lost {
        /// The VM.
        vm: Arc<FleetVm>,
        /// How many.
        count: u64,
    },
    /// It isn't known what happened in a VM meanwhile, as its server no longer has the events. The counts of the probes
    /// show how many there were.
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
    /// A VM refuses this client's probes, from the beginning or from now on.
    Refused {
        /// The server.
        host: Arc<str>,
        /// The VM.
        vm: String,
        /// Why.
        reason: String,
    },
    /// A server doesn't answer, from the beginning or from now on. The client tries again and again.
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

/// A message of the task of a VM or of a server.
#[derive(Debug)]
pub(super) enum Told {
    /// A message that isn't put in order.
    Message(FleetMessage),
    /// An event of a source.
    Event {
        source: u64,
        unix_ns: u64,
        event: FleetMessage,
        /// Limits how many events of a source are under way.
        place: OwnedSemaphorePermit,
    },
    /// A source is about to report events that are later than this. The fleet answers by `heard`.
    Begins {
        source: u64,
        unix_ns: u64,
        heard: oneshot::Sender<()>,
    },
    /// A source has reported all events up to this time.
    Reached { source: u64, unix_ns: u64 },
    /// It isn't known when a source reports something again.
    Silent { source: u64 },
}
