//! Steps of single instructions.

use std::sync::Arc;

use guest_state::VcpuId;

use crate::engine::lock::{Lock, Rank};
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

/// The steps under way, at most one a vCPU.
#[derive(Debug)]
pub(crate) struct Steps(Lock<Vec<Stepping>>);

impl Steps {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::Steps, Vec::new()))
    }

    /// Begins a step. Returns the one that the vCPU had begun before and not ended.
    pub(crate) fn begin(&self, step: Stepping) -> Option<Stepping> {
        let mut steps = self.0.lock();
        let given_up = take(&mut steps, step.vcpu);
        steps.push(step);
        given_up
    }

    /// Ends the step that the vCPU is at, and returns it.
    pub(crate) fn end(&self, vcpu: VcpuId) -> Option<Stepping> {
        take(&mut self.0.lock(), vcpu)
    }
}

fn take(steps: &mut Vec<Stepping>, vcpu: VcpuId) -> Option<Stepping> {
    let index = steps.iter().position(|step| step.vcpu == vcpu);
    index.map(|index| steps.swap_remove(index))
}
