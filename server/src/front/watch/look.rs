//! A look at the VMs.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use vmprobe_proto::v1;

use super::Watch;
use super::usage::Usage;
use crate::access::Caller;
use crate::blocking::blocking;
use crate::front::process::VmProcess;

/// How long a VM's process may take to answer. Prometheus waits ten seconds for all of them, unless it is told otherwise.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is to be told of each VM: so many probes and stops one by one.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub probes: u32,
    pub order: v1::ProbeOrder,
    pub stops: u32,
}

impl Wanted {
    /// No probes and no stops.
    pub const NONE: Self = Self {
        probes: 0,
        order: v1::ProbeOrder::Registered,
        stops: 0,
    };
}

/// A VM as it was found.
#[derive(Debug)]
pub struct SeenVm {
    /// What its process tells, or what was last known of it.
    pub vm: v1::Vm,
    /// What it comes to; none where its process has ended or hangs.
    pub stats: Option<v1::GetVmStatsResponse>,
    /// What its process uses.
    pub usage: Option<Usage>,
}

impl Watch {
    /// Asks all VMs of a caller at the same time what they come to. `wanted` says what is to be told of the one of a
    /// name. They are in the order of their names.
    pub(super) async fn look(
        &self,
        caller: &Caller,
        wanted: impl Fn(&str) -> Wanted,
    ) -> Vec<SeenVm> {
        let mut asked = JoinSet::new();
        for process in self.vms.list() {
            if caller.may_use(process.name()) {
                let wanted = wanted(process.name());
                asked.spawn(async move { see(&process, wanted).await });
            }
        }
        let mut vms = asked.join_all().await;
        vms.sort_by(|one, other| one.vm.name.cmp(&other.vm.name));
        vms
    }
}

async fn see(process: &Arc<VmProcess>, wanted: Wanted) -> SeenVm {
    let request = v1::GetVmStatsRequest {
        vm: process.name().to_owned(),
        probes: wanted.probes,
        order: wanted.order.into(),
        stops: wanted.stops,
    };
    let mut stats = process.stats(request, PATIENCE).await;
    let told = stats.as_mut().and_then(|stats| stats.vm.take());
    let usage = match process.pid() {
        Some(pid) => blocking(move || Ok(Usage::of(pid))).await.ok().flatten(),
        None => None,
    };
    SeenVm {
        vm: told.unwrap_or_else(|| process.last_known()),
        stats,
        usage,
    }
}
