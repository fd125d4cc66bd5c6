//! Monitoring of the server, by HTTP on separate addresses, or sent to a receiver.
//!
//! [`look`] asks all VMs' processes for their counts and rates. These are available as metrics ([`metrics`]), as JSON
//! ([`status`]), and on a page in a browser ([`page`]). A client that may see certain VMs by gRPC may see the same ones
//! here ([`http`]).

mod http;
mod look;
mod metrics;
mod page;
mod status;
mod usage;

use std::sync::Arc;
use std::time::Instant;

use super::counters::Counters;
use super::sent::Counts;
use super::vms::Vms;
use crate::access::Authorize;

/// The parts that monitoring needs.
#[derive(Debug)]
pub struct Watch {
    vms: Arc<Vms>,
    authorize: Authorize,
    counters: Arc<Counters>,
    /// The counts of what is sent to a receiver.
    sent: Arc<Counts>,
    /// How many probes of each VM have their own metrics at most.
    probes: u32,
    started: Instant,
}

impl Watch {
    /// Makes it for these VMs and counters. `authorize` decides who may see them.
    pub fn new(
        vms: Arc<Vms>,
        authorize: Authorize,
        counters: Arc<Counters>,
        sent: Arc<Counts>,
        probes: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            vms,
            authorize,
            counters,
            sent,
            probes,
            started: Instant::now(),
        })
    }
}
