//! The calls about probes.

use std::time::Duration;

use tonic::Streaming;
use vmprobe_proto::v1::update_probes_request::Change;
use vmprobe_proto::v1::{
    BlacklistEntry, FollowedCall, ListBlacklistRequest, ListBlacklistResponse, ListCallsRequest,
    ListProbesRequest, ListProbesResponse, Probe, ProbeSelector, ProbeSpec, RegisterProbesRequest,
    UnregisterProbesRequest, UpdateProbesRequest, WaitProbesRequest, WaitProbesResponse,
};

use crate::client::PAGE;
use crate::{Client, ClientError};

/// The result of changing several probes in one stop of the vCPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeBatch {
    /// The probes.
    pub probes: Vec<Probe>,
    /// How long the vCPUs stood still for it.
    pub stopped: Duration,
}

impl ProbeBatch {
    fn new(probes: Vec<Probe>, stopped_ns: u64) -> Self {
        let stopped = Duration::from_nanos(stopped_ns);
        Self { probes, stopped }
    }
}

/// Text of the guest's kernel that can't be probed, in address order.
#[derive(Debug)]
pub struct Blacklist {
    stream: Streaming<ListBlacklistResponse>,
}

impl Blacklist {
    /// Returns the next entries, or `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Vec<BlacklistEntry>>, ClientError> {
        Ok(self.stream.message().await?.map(|answer| answer.entries))
    }
}

impl Client {
    /// Registers all probes or none, in one stop of the vCPUs. The answer is in the order of `probes`. The probes stay
    /// when this client goes; those of a [`Session`](crate::Session) don't.
    pub async fn register_probes(
        &self,
        vm: &str,
        probes: Vec<ProbeSpec>,
    ) -> Result<Vec<Probe>, ClientError> {
        Ok(self.register_batch(vm, probes).await?.probes)
    }

    /// Does as [`Client::register_probes`], and also returns how long the guest stood still.
    pub async fn register_batch(
        &self,
        vm: &str,
        probes: Vec<ProbeSpec>,
    ) -> Result<ProbeBatch, ClientError> {
        self.register_with(vm, probes, "").await
    }

    /// Does as [`Client::register_batch`], for probes that go with a session.
    pub(crate) async fn register_with(
        &self,
        vm: &str,
        probes: Vec<ProbeSpec>,
        session: &str,
    ) -> Result<ProbeBatch, ClientError> {
        let request = RegisterProbesRequest {
            vm: vm.into(),
            probes,
            session: session.into(),
        };
        let answer = self.probes().register_probes(request).await?.into_inner();
        Ok(ProbeBatch::new(answer.probes, answer.stopped_ns))
    }

    /// Removes all probes that are named by id or by name, or none. The answer has their final counts.
    pub async fn unregister_probes(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
    ) -> Result<Vec<Probe>, ClientError> {
        Ok(self.unregister_batch(vm, ids, names).await?.probes)
    }

    /// Does as [`Client::unregister_probes`], and also returns how long the guest stood still.
    pub async fn unregister_batch(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
    ) -> Result<ProbeBatch, ClientError> {
        let request = UnregisterProbesRequest {
            vm: vm.into(),
            selector: Some(ProbeSelector { ids, names }),
        };
        let answer = self.probes().unregister_probes(request).await?.into_inner();
        Ok(ProbeBatch::new(answer.probes, answer.stopped_ns))
    }

    /// Enables all probes that are named by id or by name, or none.
    pub async fn enable_probes(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
    ) -> Result<ProbeBatch, ClientError> {
        self.update_selected(vm, ids, names, Change::Enabled(true))
            .await
    }

    /// Disables all probes that are named by id or by name, or none: they stay, but aren't hit.
    pub async fn disable_probes(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
    ) -> Result<ProbeBatch, ClientError> {
        self.update_selected(vm, ids, names, Change::Enabled(false))
            .await
    }

    /// Arms those probes of a VM that are enabled, after [`Client::disarm_probes`]. Returns how long the guest stood
    /// still for it.
    pub async fn arm_probes(&self, vm: &str) -> Result<Duration, ClientError> {
        self.update_all(vm, Change::Enabled(true)).await
    }

    /// Disarms all probes of a VM and leaves their own states as they are. Returns how long the guest stood still for
    /// it.
    pub async fn disarm_probes(&self, vm: &str) -> Result<Duration, ClientError> {
        self.update_all(vm, Change::Enabled(false)).await
    }

    /// Lets all probes that are named by id or by name become jumps, or none of them. They do so in the
    /// background: see [`Client::wait_probes`].
    pub async fn optimize_probes(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
    ) -> Result<ProbeBatch, ClientError> {
        self.update_selected(vm, ids, names, Change::Optimize(true))
            .await
    }

    /// Keeps all probes that are named by id or by name as breakpoints, or none of them.
    pub async fn keep_breakpoints(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
    ) -> Result<ProbeBatch, ClientError> {
        self.update_selected(vm, ids, names, Change::Optimize(false))
            .await
    }

    /// Turns all of a VM's jumps into breakpoints (`on` is false), or lets probes become jumps again; their own options
    /// stay as they are. Returns how long the guest stood still for it.
    pub async fn set_optimization(&self, vm: &str, on: bool) -> Result<Duration, ClientError> {
        self.update_all(vm, Change::Optimize(on)).await
    }

    async fn update_selected(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
        change: Change,
    ) -> Result<ProbeBatch, ClientError> {
        let selector = Some(ProbeSelector { ids, names });
        self.update_probes(vm, selector, change).await
    }

    async fn update_all(&self, vm: &str, change: Change) -> Result<Duration, ClientError> {
        Ok(self.update_probes(vm, None, change).await?.stopped)
    }

    async fn update_probes(
        &self,
        vm: &str,
        selector: Option<ProbeSelector>,
        change: Change,
    ) -> Result<ProbeBatch, ClientError> {
        let request = UpdateProbesRequest {
            vm: vm.into(),
            selector,
            change: Some(change),
        };
        let answer = self.probes().update_probes(request).await?.into_inner();
        Ok(ProbeBatch::new(answer.probes, answer.stopped_ns))
    }

    /// Waits until each of the probes that are named by id or by name is a jump or never will be. If none is named,
    /// waits for all probes.
    ///
    /// # Errors
    /// [`ClientError::Timeout`] when that takes longer than `at_most`.
    pub async fn wait_probes(
        &self,
        vm: &str,
        ids: Vec<u64>,
        names: Vec<String>,
        at_most: Duration,
    ) -> Result<WaitProbesResponse, ClientError> {
        let mut request = tonic::Request::new(WaitProbesRequest {
            vm: vm.into(),
            selector: Some(ProbeSelector { ids, names }),
        });
        request.set_timeout(at_most);
        Ok(self.probes().wait_probes(request).await?.into_inner())
    }

    /// Returns the probes of a VM with their counts.
    pub async fn list_probes(&self, vm: &str) -> Result<Vec<Probe>, ClientError> {
        Ok(self.probe_list(vm).await?.probes)
    }

    /// Returns the probes of a VM with their counts, whether they are armed, and whether they may be jumps. More than
    /// 10,000 probes take several calls, each with the counts of its time.
    pub async fn probe_list(&self, vm: &str) -> Result<ListProbesResponse, ClientError> {
        let mut whole = ListProbesResponse::default();
        loop {
            let request = ListProbesRequest {
                vm: vm.into(),
                page_size: PAGE,
                page_token: whole.next_page_token,
            };
            let page = self.probes().list_probes(request).await?.into_inner();
            whole.probes.extend(page.probes);
            whole = ListProbesResponse {
                probes: whole.probes,
                ..page
            };
            if whole.next_page_token.is_empty() {
                return Ok(whole);
            }
        }
    }

    /// Returns the calls that return probes follow now, with their tasks: the guest's live patching waits for these
    /// tasks.
    pub async fn calls(&self, vm: &str) -> Result<Vec<FollowedCall>, ClientError> {
        let request = ListCallsRequest { vm: vm.into() };
        let mut stream = self.probes().list_calls(request).await?.into_inner();
        let mut calls = Vec::new();
        while let Some(answer) = stream.message().await? {
            calls.extend(answer.calls);
        }
        Ok(calls)
    }

    /// Returns the text that can't be probed, and why: all of it, or only in the symbols that match a name or a pattern
    /// with `*` and `?`.
    pub async fn blacklist(&self, vm: &str, pattern: &str) -> Result<Blacklist, ClientError> {
        let request = ListBlacklistRequest {
            vm: vm.into(),
            pattern: pattern.into(),
        };
        let stream = self.probes().list_blacklist(request).await?.into_inner();
        Ok(Blacklist { stream })
    }
}
