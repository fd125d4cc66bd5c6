//! Many servers at once, without guests: how a fleet merges their messages.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};
use vmprobe_client::Credentials;
use vmprobe_client::fleet::{Fleet, FleetMessage, FleetOptions, Host};
use vmprobe_client::v1::event_service_server::{EventService, EventServiceServer};
use vmprobe_client::v1::probe_service_server::{ProbeService, ProbeServiceServer};
use vmprobe_client::v1::session_service_server::{SessionService, SessionServiceServer};
use vmprobe_client::v1::vm_service_server::{VmService, VmServiceServer};
use vmprobe_client::v1::{stream_events_response::Message, *};

/// A counter of one gigahertz, which counts nanoseconds.
const HZ: u64 = 1_000_000_000;
/// The time of all hosts' clocks when their counters are 0.
const EPOCH: u64 = 1_700_000_000_000_000_000;
/// Events in a batch.
const BATCH: u64 = 10;

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A server whose VM has an event at each multiple of `every` nanoseconds, beginning with its `number`.
#[derive(Clone)]
struct Simulated {
    number: u64,
    every: u64,
    events: u64,
    /// Each stream breaks after this many batches.
    breaks: u64,
    /// True if the guest ends with its last event, and another guest gets its name at once.
    ends: bool,
}

impl Simulated {
    /// Listens at a socket in a folder.
    fn listen(self, folder: &Path) -> Host {
        let socket = folder.join(self.number.to_string());
        let listener = UnixListener::bind(&socket).unwrap();
        let router = tonic::transport::Server::builder()
            .add_service(VmServiceServer::new(self.clone()))
            .add_service(ProbeServiceServer::new(self.clone()))
            .add_service(EventServiceServer::new(self.clone()))
            .add_service(SessionServiceServer::new(self.clone()));
        let incoming = UnixListenerStream::new(listener);
        tokio::spawn(router.serve_with_incoming(incoming));
        Host {
            name: self.number.to_string(),
            endpoint: format!("unix:{}", socket.display()),
            credentials: Credentials::default(),
        }
    }

    /// Returns the batch of this number, from 1, or `None` after the last.
    fn batch(&self, number: u64) -> Option<EventBatch> {
        let first = (number - 1) * BATCH;
        let event = |index| Event {
            probe_id: 1,
            tsc: index * self.every + self.number,
            ..Default::default()
        };
        let events = first..self.events.min(first + BATCH);
        let mut batch: EventBatch = events.map(event).collect();
        batch.number = number;
        (!batch.is_empty()).then_some(batch)
    }
}

#[tonic::async_trait]
impl EventService for Simulated {
    type StreamEventsStream = Answers<StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Answer<Self::StreamEventsStream> {
        let request = request.into_inner();
        assert!(request.progress_ms > 0 && request.linger_ms > 0);
        let first = request.resume.map_or(1, |cursor| cursor.batch + 1);
        let subscribed = Message::Subscribed(Subscribed {
            tsc_hz: HZ,
            stream: "stream".into(),
            clock: Some(ClockSample {
                tsc: 0,
                unix_ns: EPOCH,
            }),
        });
        let server = self.clone();
        let batches = (first..first + self.breaks).map_while(move |number| server.batch(number));
        let messages = std::iter::once(subscribed).chain(batches.map(Message::Batch));
        let messages = messages.map(|message| {
            Ok(StreamEventsResponse {
                message: Some(message),
            })
        });
        let last = match self.batch(first + self.breaks) {
            Some(_) => Err(Status::unavailable("cut off")),
            None if self.ends => Ok(StreamEventsResponse {
                message: Some(Message::Ended(Ended::default())),
            }),
            // No more events will come.
            None => Ok(StreamEventsResponse {
                message: Some(Message::Progress(Progress { tsc: u64::MAX >> 1 })),
            }),
        };
        let messages = tokio_stream::iter(messages.chain([last]));
        let messages = messages.chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(messages)))
    }
}

#[tonic::async_trait]
impl SessionService for Simulated {
    type OpenSessionStream = Answers<OpenSessionResponse>;

    async fn open_session(
        &self,
        _: Request<OpenSessionRequest>,
    ) -> Answer<Self::OpenSessionStream> {
        let opened = open_session_response::Message::Opened(SessionOpened {
            session: "session".into(),
            probe_ids: vec![1],
        });
        let opened = OpenSessionResponse {
            message: Some(opened),
        };
        let messages = tokio_stream::once(Ok(opened)).chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(messages)))
    }
}

/// Calls of a service that a fleet doesn't make, in the form of `async_trait`.
macro_rules! never {
    ($($name:ident($request:ty) -> $response:ty;)*) => {
        $(
            fn $name<'a, 'b>(
                &'a self,
                _: Request<$request>,
            ) -> Pin<Box<dyn Future<Output = Answer<$response>> + Send + 'b>>
            where
                'a: 'b,
                Self: 'b,
            {
                Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
            }
        )*
    };
}

#[tonic::async_trait]
impl ProbeService for Simulated {
    type ListCallsStream = Answers<ListCallsResponse>;
    type ListBlacklistStream = Answers<ListBlacklistResponse>;

    async fn register_probes(
        &self,
        request: Request<RegisterProbesRequest>,
    ) -> Answer<RegisterProbesResponse> {
        let request = request.into_inner();
        assert_eq!(request.session, "session");
        assert_eq!(request.probes[0].enabled, Some(false));
        let probe = Probe {
            id: 1,
            name: "p".into(),
            ..Default::default()
        };
        Ok(Response::new(RegisterProbesResponse {
            probes: vec![probe],
            stopped_ns: 0,
        }))
    }

    async fn update_probes(&self, _: Request<UpdateProbesRequest>) -> Answer<UpdateProbesResponse> {
        Ok(Response::new(Default::default()))
    }

    async fn unregister_probes(
        &self,
        _: Request<UnregisterProbesRequest>,
    ) -> Answer<UnregisterProbesResponse> {
        Ok(Response::new(Default::default()))
    }

    never! {
        list_probes(ListProbesRequest) -> ListProbesResponse;
        wait_probes(WaitProbesRequest) -> WaitProbesResponse;
        list_calls(ListCallsRequest) -> Self::ListCallsStream;
        list_blacklist(ListBlacklistRequest) -> Self::ListBlacklistStream;
    }
}

#[tonic::async_trait]
impl VmService for Simulated {
    type DumpVmStream = Answers<DumpVmResponse>;

    async fn list_vms(&self, _: Request<ListVmsRequest>) -> Answer<ListVmsResponse> {
        let mut vm = Vm {
            name: "guest".into(),
            vcpus: 1,
            ..Default::default()
        };
        vm.set_state(VmState::Running);
        Ok(Response::new(ListVmsResponse {
            vms: vec![vm],
            next_page_token: String::new(),
        }))
    }

    never! {
        create_vm(CreateVmRequest) -> CreateVmResponse;
        start_vm(StartVmRequest) -> StartVmResponse;
        get_vm(GetVmRequest) -> GetVmResponse;
        get_vm_stats(GetVmStatsRequest) -> GetVmStatsResponse;
        pause_vm(PauseVmRequest) -> PauseVmResponse;
        resume_vm(ResumeVmRequest) -> ResumeVmResponse;
        kill_vm(KillVmRequest) -> KillVmResponse;
        wait_vm(WaitVmRequest) -> WaitVmResponse;
        delete_vm(DeleteVmRequest) -> DeleteVmResponse;
        read_registers(ReadRegistersRequest) -> ReadRegistersResponse;
        read_memory(ReadMemoryRequest) -> ReadMemoryResponse;
        read_stack(ReadStackRequest) -> ReadStackResponse;
        dump_vm(DumpVmRequest) -> Self::DumpVmStream;
    }
}

fn options() -> FleetOptions {
    FleetOptions {
        probes: vec![vmprobe_client::spec::parse("p=place").unwrap()],
        vms: "g*".into(),
        // Far more than a test takes: the order depends on no time here.
        window: Duration::from_secs(600),
        linger: Duration::from_secs(600),
    }
}

/// Returns the next event: its host, and its time after [`EPOCH`].
async fn event(fleet: &mut Fleet) -> (u64, u64) {
    loop {
        match fleet.next().await.unwrap() {
            FleetMessage::Event { vm, unix_ns, event } => {
                assert_eq!(event.tsc, unix_ns - EPOCH);
                return (vm.host.parse().unwrap(), event.tsc);
            }
            FleetMessage::Joined(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_events_of_200_hosts_come_each_once_in_order_and_in_bounded_memory() {
    const HOSTS: u64 = 200;
    const EACH: u64 = 2_000;
    let folder = tempfile::tempdir().unwrap();
    let simulated = (0..HOSTS).map(|number| Simulated {
        number,
        every: HOSTS,
        events: EACH,
        breaks: EACH,
        ends: false,
    });
    let hosts = simulated.map(|server| server.listen(folder.path()));
    let mut fleet = Fleet::follow(hosts.collect(), options());
    let mut seen = vec![0; HOSTS as usize];
    let mut late = 0;
    let mut last = 0;
    for _ in 0..HOSTS * EACH {
        let (host, time) = event(&mut fleet).await;
        let seen = &mut seen[host as usize];
        assert_eq!(time, *seen * HOSTS + host, "an event of host {host}");
        *seen += 1;
        // Hosts that began before others joined are ahead of those.
        late += u64::from(time < last);
        last = last.max(time);
    }
    assert!(seen.iter().all(|count| *count == EACH));
    assert_eq!(fleet.late(), late);
    let bytes = most_memory();
    assert!(bytes < 512 << 20, "{} MiB", bytes >> 20);
    fleet.close().await;
}

/// The most bytes of memory that this process has had.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_cut_off_go_on_where_they_were_and_the_others_wait() {
    const HOSTS: u64 = 3;
    const EACH: u64 = 5_000;
    let folder = tempfile::tempdir().unwrap();
    let simulated = (0..HOSTS).map(|number| Simulated {
        number,
        every: HOSTS,
        events: EACH,
        breaks: 20 + number,
        ends: false,
    });
    let hosts = simulated.map(|server| server.listen(folder.path()));
    let mut fleet = Fleet::follow(hosts.collect(), options());
    let mut seen = [0; HOSTS as usize];
    let mut last = 0;
    for _ in 0..HOSTS * EACH {
        let (host, time) = event(&mut fleet).await;
        // No event is missing, and none comes twice.
        assert_eq!(time, seen[host as usize] * HOSTS + host, "host {host}");
        seen[host as usize] += 1;
        // When all hosts have joined, all events are in order.
        if !seen.contains(&0) {
            assert!(time > last || fleet.late() > 0, "{time} is behind {last}");
        }
        last = last.max(time);
    }
    assert_eq!(seen, [EACH; HOSTS as usize]);
    fleet.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_has_the_name_of_one_that_ended_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let simulated = Simulated {
        number: 0,
        every: 1,
        events: 1,
        breaks: 2,
        ends: true,
    };
    let mut fleet = Fleet::follow(vec![simulated.listen(folder.path())], options());
    let mut told = Vec::new();
    while told.len() < 6 {
        told.push(match fleet.next().await.unwrap() {
            FleetMessage::Joined(_) => "joined",
            FleetMessage::Event { .. } => "event",
            FleetMessage::Ended { .. } => "ended",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        told.iter().filter(|told| **told == "joined").count(),
        2,
        "{told:?}"
    );
    assert_eq!(
        told.iter().filter(|told| **told == "event").count(),
        2,
        "{told:?}"
    );
    fleet.close().await;
}
