//! What the vCPUs of a guest have in common.

use std::sync::Arc;

use crate::{
    devices::bus::Bus, ending::EndSignal, exits::ExitCounters, gate::Gate, ram::GuestRam,
    vcpu::kick::KickThreads,
};

/// What all vCPUs of a guest share.
pub(crate) struct Shared {
    pub(crate) gate: Gate,
    pub(crate) bus: Bus,
    pub(crate) ram: GuestRam,
    pub(crate) end: Arc<EndSignal>,
    pub(crate) kicks: Arc<KickThreads>,
    pub(crate) exits: ExitCounters,
    /// The guest's page tables may map 1 GiB by one entry.
    pub(crate) gigabyte_pages: bool,
}
