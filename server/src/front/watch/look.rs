//! Asking all VMs for their state.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use vmprobe_proto::v1;

use super::Watch;
use super::usage::Usage;
use crate::access::Caller;
use crate::blocking::blocking;
use crate::front::process::VmProcess;

/// How long a VM's process may take to answer. Prometheus waits ten seconds for all VMs together by default.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many probes and stops of a VM are listed one by one.
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

/// A VM's state.
#[derive(Debug)]
pub struct SeenVm {
    /// The description from its process, or the last known one.
    pub vm: v1::Vm,
    /// Its counts and rates; `None` if its process has ended or hangs.
    pub stats: Option<v1::GetVmStatsResponse>,
    /// The resources that its process uses.
    pub usage: Option<Usage>,
}

impl Watch {
    /// Asks all VMs of a caller at the same time for their counts and rates. `wanted` says by a VM's name what to list
    /// of it. The result is in the order of names.
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
