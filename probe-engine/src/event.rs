//! What the engine reports.

use crate::addr::{ProbeId, Tsc, VcpuId};
use crate::vcpu::Registers;

/// One hit of one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// The probe.
    pub probe: ProbeId,
    /// The vCPU that hit it.
    pub vcpu: VcpuId,
    /// The guest's time stamp counter, in its ticks, when the vCPU stopped.
    pub tsc: Tsc,
    /// The registers before the probed instruction. RIP is the probe's address,
    /// also where the code ran at another one (identity-mapped early boot).
    pub registers: Registers,
}

/// Takes the hits.
pub trait EventSink: Send + Sync {
    /// Called on the vCPU's thread, several at once, with the vCPU stopped: be
    /// quick, and don't wait for anything that a vCPU does.
    fn hit(&self, hit: &Hit);
}
