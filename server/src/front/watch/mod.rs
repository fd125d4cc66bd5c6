//! What is told to those who watch the server, by HTTP on addresses of their own, or sent to a receiver.
//!
//! [`look`] asks all VMs' processes what they come to. It is told as metrics ([`metrics`]), as JSON ([`status`]), and shown
//! by a page in a browser ([`page`]). Who may look at VMs by gRPC may look at them here, and at no others ([`http`]).

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

/// What is needed to tell it.
#[derive(Debug)]
pub struct Watch {
    vms: Arc<Vms>,
    authorize: Authorize,
    counters: Arc<Counters>,
    /// What is sent to a receiver.
    sent: Arc<Counts>,
    /// Probes of a VM that metrics tell one by one, at most.
    probes: u32,
    started: Instant,
}

impl Watch {
    /// Of these VMs and counters, for those who may look at them.
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
