//! Steps under way.

use std::sync::Arc;

use guest_state::VcpuId;

use crate::engine::sites::site::{Relocated, Site};

/// Where the instruction is stepped.
#[derive(Debug, Clone)]
pub(crate) enum StepIn {
    Copy(Relocated),
    /// At its own address, with all other vCPUs stopped and the int3 lifted.
    Place,
}

/// A step under way.
#[derive(Debug)]
pub(crate) struct Stepping {
    pub(crate) vcpu: VcpuId,
    pub(crate) site: Arc<Site>,
    pub(crate) at: StepIn,
    /// Where it began. Differs from the site where text is identity-mapped.
    pub(crate) rip: u64,
}
