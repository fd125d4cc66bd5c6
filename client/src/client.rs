//! The connection and its calls.

use std::time::Duration;

use vmprobe_proto::v1::console_service_client::ConsoleServiceClient;
use vmprobe_proto::v1::debug_service_client::DebugServiceClient;
use vmprobe_proto::v1::event_service_client::EventServiceClient;
use vmprobe_proto::v1::hit_service_client::HitServiceClient;
use vmprobe_proto::v1::host_service_client::HostServiceClient;
use vmprobe_proto::v1::probe_service_client::ProbeServiceClient;
use vmprobe_proto::v1::symbol_service_client::SymbolServiceClient;
use vmprobe_proto::v1::vm_service_client::VmServiceClient;
use vmprobe_proto::v1::{
    CreateVmRequest, CreateVmResponse, DeleteVmRequest, DumpVmRequest, Ending, EventCursor,
    GetHostRequest, GetHostResponse, GetVmRequest, GetVmStatsRequest, GetVmStatsResponse,
    KillVmRequest, ListVmsRequest, PauseVmRequest, Probe, ProbeOrder, ProbeSelector,
    ReadMemoryRequest, ReadRegistersRequest, ReadStackRequest, ReadStackResponse, Registers,
    ResumeVmRequest, StartVmRequest, StreamEventsRequest, Vm, WaitVmRequest,
};

use crate::connection::{self, Connection, Credentials};
use crate::console::{self, ConsoleInput, ConsoleOutput};
use crate::{ClientError, DebugSession, Dump, EventStream, HeldHits};

/// The largest answer that is accepted: a list of 100,000 probes has about 20 MiB.
const MAX_ANSWER: usize = 64 << 20;
/// Items of a page: the most that a server gives.
pub(crate) const PAGE: u32 = 10_000;

/// A connection to a server. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Connection,
}

impl Client {
    /// Connects to a server, such as `unix:/run/vmprobe/vmprobed.sock`. See [`connect_with`](Self::connect_with).
    ///
    /// # Errors
    /// The errors of `connect_with`.
    pub async fn connect(endpoint: &str) -> Result<Self, ClientError> {
        Self::connect_with(endpoint, &Credentials::default()).await
    }

    /// Connects to a server: by a Unix socket (`unix:PATH`), by TLS (`https://HOST:PORT`), or in plain text
    /// (`http://127.0.0.1:7070`, where `http://` may be left out).
    ///
    /// # Errors
    /// [`ClientError::Endpoint`] if the text isn't an address, or the credentials can't be used;
    /// [`ClientError::NoServer`] when nothing answers there within 5 seconds.
    pub async fn connect_with(
        endpoint: &str,
        credentials: &Credentials,
    ) -> Result<Self, ClientError> {
        let channel = connection::connect(endpoint, credentials).await?;
        Ok(Self { channel })
    }

    /// Creates a VM and registers its first probes; starts it unless `hold` is set.
    pub async fn create_vm(
        &self,
        request: CreateVmRequest,
    ) -> Result<(Vm, Vec<Probe>), ClientError> {
        let CreateVmResponse { vm, probes } = self.vms().create_vm(request).await?.into_inner();
        Ok((vm.ok_or(ClientError::Protocol("vm"))?, probes))
    }

    /// Starts a VM that was created with `hold`.
    pub async fn start_vm(&self, vm: &str) -> Result<Vm, ClientError> {
        let answer = self
            .vms()
            .start_vm(StartVmRequest { vm: vm.into() })
            .await?;
        answer.into_inner().vm.ok_or(ClientError::Protocol("vm"))
    }

    /// Returns a VM's description.
    pub async fn get_vm(&self, vm: &str) -> Result<Vm, ClientError> {
        let answer = self.vms().get_vm(GetVmRequest { vm: vm.into() }).await?;
        answer.into_inner().vm.ok_or(ClientError::Protocol("vm"))
    }

    /// Returns a VM's counts and rates, with at most this many of its probes and of its last stops.
    pub async fn vm_stats(
        &self,
        vm: &str,
        probes: u32,
        order: ProbeOrder,
        stops: u32,
    ) -> Result<GetVmStatsResponse, ClientError> {
        let request = GetVmStatsRequest {
            vm: vm.into(),
            probes,
            order: order.into(),
            stops,
        };
        Ok(self.vms().get_vm_stats(request).await?.into_inner())
    }

    /// Returns all VMs of the server, by name.
    pub async fn list_vms(&self) -> Result<Vec<Vm>, ClientError> {
        let mut vms = Vec::new();
        let mut page_token = String::new();
        loop {
            let page_size = PAGE;
            let request = ListVmsRequest {
                page_size,
                page_token,
            };
            let page = self.vms().list_vms(request).await?.into_inner();
            vms.extend(page.vms);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(vms);
            }
        }
    }

    /// Stops a VM's vCPUs. Returns when all are out of guest mode.
    pub async fn pause_vm(&self, vm: &str) -> Result<Vm, ClientError> {
        let answer = self
            .vms()
            .pause_vm(PauseVmRequest { vm: vm.into() })
            .await?;
        answer.into_inner().vm.ok_or(ClientError::Protocol("vm"))
    }

    /// Lets a paused VM go on.
    pub async fn resume_vm(&self, vm: &str) -> Result<Vm, ClientError> {
        let answer = self
            .vms()
            .resume_vm(ResumeVmRequest { vm: vm.into() })
            .await?;
        answer.into_inner().vm.ok_or(ClientError::Protocol("vm"))
    }

    /// Ends a guest at once.
    pub async fn kill_vm(&self, vm: &str) -> Result<Vm, ClientError> {
        let answer = self.vms().kill_vm(KillVmRequest { vm: vm.into() }).await?;
        answer.into_inner().vm.ok_or(ClientError::Protocol("vm"))
    }

    /// Waits until a guest has ended.
    pub async fn wait_vm(&self, vm: &str) -> Result<Ending, ClientError> {
        let answer = self.vms().wait_vm(WaitVmRequest { vm: vm.into() }).await?;
        answer
            .into_inner()
            .ending
            .ok_or(ClientError::Protocol("ending"))
    }

    /// Deletes a VM. If it runs, it is killed first.
    pub async fn delete_vm(&self, vm: &str) -> Result<(), ClientError> {
        self.vms()
            .delete_vm(DeleteVmRequest { vm: vm.into() })
            .await?;
        Ok(())
    }

    /// Returns the general registers of one vCPU.
    pub async fn read_registers(&self, vm: &str, vcpu: u32) -> Result<Registers, ClientError> {
        let request = ReadRegistersRequest {
            vm: vm.into(),
            vcpu,
        };
        let answer = self.vms().read_registers(request).await?.into_inner();
        answer.registers.ok_or(ClientError::Protocol("registers"))
    }

    /// Returns where a vCPU stands: its task, and its call stack in the kernel.
    pub async fn read_stack(&self, vm: &str, vcpu: u32) -> Result<ReadStackResponse, ClientError> {
        let request = ReadStackRequest {
            vm: vm.into(),
            vcpu,
            limit: 0,
        };
        Ok(self.vms().read_stack(request).await?.into_inner())
    }

    /// Returns guest memory at a virtual address, at most 1 MiB, as the page tables of `vcpu` map it. The result ends
    /// before the first unmapped page. It shows the text without probes.
    pub async fn read_memory(
        &self,
        vm: &str,
        vcpu: u32,
        address: u64,
        length: u32,
    ) -> Result<Vec<u8>, ClientError> {
        self.read_memory_by(ReadMemoryRequest {
            vm: vm.into(),
            vcpu,
            address,
            length,
            as_is: false,
        })
        .await
    }

    /// Does as [`Client::read_memory`], with the request's fields as they are given, such as `as_is`.
    pub async fn read_memory_by(&self, request: ReadMemoryRequest) -> Result<Vec<u8>, ClientError> {
        Ok(self.vms().read_memory(request).await?.into_inner().data)
    }

    /// Returns a VM's memory and vCPUs as an ELF core file. A running guest is paused until the dump is dropped or
    /// over.
    pub async fn dump(&self, vm: &str) -> Result<Dump, ClientError> {
        let answer = self.vms().dump_vm(DumpVmRequest { vm: vm.into() }).await?;
        Ok(Dump {
            stream: answer.into_inner(),
        })
    }

    /// Attaches to a VM's console: its output so far, and then its new output.
    pub async fn attach_console(
        &self,
        vm: &str,
    ) -> Result<(ConsoleInput, ConsoleOutput), ClientError> {
        console::attach(&mut ConsoleServiceClient::new(self.channel.clone()), vm).await
    }

    /// Returns what the server's host can do.
    pub async fn get_host(&self) -> Result<GetHostResponse, ClientError> {
        let mut hosts = HostServiceClient::new(self.channel.clone());
        Ok(hosts.get_host(GetHostRequest {}).await?.into_inner())
    }

    /// Lets this client answer the hits of these probes, each within `time`. The vCPU of the hit stands still until
    /// then.
    ///
    /// # Errors
    /// [`ClientError::AlreadyExists`] when another client answers the hits of one of them.
    pub async fn handle_hits(
        &self,
        vm: &str,
        probe_ids: Vec<u64>,
        names: Vec<String>,
        time: Duration,
    ) -> Result<HeldHits, ClientError> {
        let probes = ProbeSelector {
            ids: probe_ids,
            names,
        };
        let mut service = HitServiceClient::new(self.channel.clone());
        HeldHits::begin(&mut service, vm, probes, time).await
    }

    /// Pauses a VM, and debugs its guest until the session is dropped.
    ///
    /// # Errors
    /// [`ClientError::AlreadyExists`] when another client debugs it.
    pub async fn debug(&self, vm: &str) -> Result<DebugSession, ClientError> {
        DebugSession::begin(&mut DebugServiceClient::new(self.channel.clone()), vm).await
    }

    /// Follows the hits of the probes with these ids, or of all probes if there are none. When this returns, every
    /// later hit is delivered or counted as lost.
    pub async fn events(&self, vm: &str, probe_ids: Vec<u64>) -> Result<EventStream, ClientError> {
        self.follow(StreamEventsRequest {
            vm: vm.into(),
            probe_ids,
            ..Default::default()
        })
        .await
    }

    /// Does as [`Client::events`], and makes the server keep the stream's events for a while when the stream breaks, so
    /// that [`Client::resume_events`] can go on from there.
    pub async fn events_to_resume(
        &self,
        vm: &str,
        probe_ids: Vec<u64>,
        options: EventOptions,
    ) -> Result<EventStream, ClientError> {
        self.follow(StreamEventsRequest {
            vm: vm.into(),
            probe_ids,
            ..options.request()
        })
        .await
    }

    /// Goes on with a stream that has broken, behind `cursor`.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when the stream's events are no longer kept; [`ClientError::Other`] with
    /// `OUT_OF_RANGE` when those behind the cursor aren't.
    pub async fn resume_events(
        &self,
        vm: &str,
        cursor: &EventCursor,
        options: EventOptions,
    ) -> Result<EventStream, ClientError> {
        let stream = self.follow(StreamEventsRequest {
            vm: vm.into(),
            resume: Some(cursor.clone()),
            ..options.request()
        });
        Ok(stream.await?.behind(cursor.batch))
    }

    async fn follow(&self, request: StreamEventsRequest) -> Result<EventStream, ClientError> {
        let mut events =
            EventServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        let stream = events.stream_events(request).await?.into_inner();
        EventStream::subscribed(stream).await
    }

    pub(crate) fn connection(&self) -> Connection {
        self.channel.clone()
    }

    fn vms(&self) -> VmServiceClient<Connection> {
        VmServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) fn probes(&self) -> ProbeServiceClient<Connection> {
        ProbeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) fn symbols(&self) -> SymbolServiceClient<Connection> {
        SymbolServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
    }
}

/// Options of a stream of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// How long its events are kept when it breaks, at most 10 minutes.
    pub linger: Duration,
    /// How often the server reports the stream's progress: 10 ms to a minute.
    pub progress: Option<Duration>,
}

impl EventOptions {
    /// Makes the options of a stream whose events are kept this long when it breaks.
    #[must_use]
    pub fn lingering(linger: Duration) -> Self {
        Self {
            linger,
            progress: None,
        }
    }

    fn request(self) -> StreamEventsRequest {
        StreamEventsRequest {
            linger_ms: millis(self.linger),
            progress_ms: self.progress.map_or(0, millis),
            ..Default::default()
        }
    }
}

/// Returns a time in the protocol's milliseconds.
pub(crate) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
