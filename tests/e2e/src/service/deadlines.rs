//! Calls that end before what they wait for: by their deadline, or because their client gives up. They leave nothing
//! behind, and nothing half done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use prost_types::FileDescriptorSet;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use vmprobe_client::v1::{self, BootMethod, CreateVmRequest, ProbeOrder};
use vmprobe_client::{Client, spec};

use crate::bare::Bare;
use crate::context::Context;
use crate::http;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::tiny::{sessions, unpack};

pub const TESTS: &[Test] = &[
    Test {
        name: "a_call_of_any_method_that_has_no_time_left_is_not_begun",
        ids: &["SV01"],
        needs: Needs::None,
        run: no_time,
    },
    Test {
        name: "calls_that_wait_end_by_the_server_at_their_deadline_and_nothing_is_left",
        ids: &["SV01"],
        needs: Needs::Tiny,
        run: ended,
    },
    Test {
        name: "calls_that_wait_end_when_their_client_gives_up_and_nothing_is_left",
        ids: &["SV01"],
        needs: Needs::Tiny,
        run: given_up,
    },
    Test {
        name: "a_call_of_any_method_that_is_given_up_before_its_message_counts_as_cancelled",
        ids: &["SV01"],
        needs: Needs::Tiny,
        run: without_message,
    },
    Test {
        name: "a_batch_of_probes_that_runs_out_of_time_is_registered_whole_or_not_at_all",
        ids: &["SV01"],
        needs: Needs::Tiny,
        run: batches,
    },
];

/// The VM that there is.
const VM: &str = "waiting";
/// The VM that is never finished.
const ENDLESS: &str = "endless";
/// The deadline of a call that is to end by it.
const SHORT: Duration = Duration::from_millis(300);

/// A call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    CreateVm,
    WaitVm,
    WaitProbes,
    StreamEvents,
    OpenSession,
    HandleHits,
    Debug,
    AttachConsole,
    UploadImage,
    Watch,
}

impl Call {
    const ALL: [Self; 10] = [
        Self::CreateVm,
        Self::WaitVm,
        Self::WaitProbes,
        Self::StreamEvents,
        Self::OpenSession,
        Self::HandleHits,
        Self::Debug,
        Self::AttachConsole,
        Self::UploadImage,
        Self::Watch,
    ];

    /// The name of its method in metrics.
    fn method(self) -> String {
        let service = match self {
            Self::CreateVm | Self::WaitVm => "VmService",
            Self::WaitProbes => "ProbeService",
            Self::StreamEvents => "EventService",
            Self::OpenSession => "SessionService",
            Self::HandleHits => "HitService",
            Self::Debug => "DebugService",
            Self::AttachConsole => "ConsoleService",
            Self::UploadImage => "ImageService",
            Self::Watch => "grpc.health.v1.Health",
        };
        format!("{service}/{self:?}")
    }

    /// The kind under which metrics count it while it is under way.
    fn kind(self) -> &'static str {
        match self {
            Self::CreateVm => "call",
            _ => "stream",
        }
    }

    /// Returns true if its client sends messages. A client that gives such a call up ends its messages first, and the
    /// server may end the call because of that.
    fn has_messages(self) -> bool {
        matches!(
            self,
            Self::HandleHits | Self::Debug | Self::AttachConsole | Self::UploadImage
        )
    }

    /// Makes the call, and returns how it ends.
    async fn make(self, guest: Waiting, time: Option<Duration>) -> Status {
        match self.answer(guest, time).await {
            Ok(()) => Status::ok("it has ended by itself"),
            Err(status) => status,
        }
    }

    async fn answer(self, guest: Waiting, time: Option<Duration>) -> Result<(), Status> {
        let origin = "http://vmprobed".parse().unwrap_or_default();
        let (vm, bare) = (VM.to_owned(), guest.bare.clone());
        macro_rules! client {
            ($client:ty) => {
                <$client>::with_origin(bare, origin)
            };
        }
        match self {
            Self::CreateVm => {
                let mut client = client!(v1::vm_service_client::VmServiceClient<_>);
                let request = CreateVmRequest {
                    name: ENDLESS.into(),
                    kernel: guest.endless.to_string_lossy().into_owned(),
                    boot: BootMethod::Bzimage.into(),
                    memory_mib: 64,
                    ..Default::default()
                };
                client.create_vm(timed(request, time)).await.map(drop)
            }
            Self::WaitVm => {
                let mut client = client!(v1::vm_service_client::VmServiceClient<_>);
                let request = timed(v1::WaitVmRequest { vm }, time);
                client.wait_vm(request).await.map(drop)
            }
            Self::WaitProbes => {
                let mut client = client!(v1::probe_service_client::ProbeServiceClient<_>);
                let request = v1::WaitProbesRequest { vm, selector: None };
                client.wait_probes(timed(request, time)).await.map(drop)
            }
            Self::StreamEvents => {
                let mut client = client!(v1::event_service_client::EventServiceClient<_>);
                let request = v1::StreamEventsRequest {
                    vm,
                    ..Default::default()
                };
                all(client.stream_events(timed(request, time)).await).await
            }
            Self::OpenSession => {
                let mut client = client!(v1::session_service_client::SessionServiceClient<_>);
                let request = v1::OpenSessionRequest {
                    vm,
                    ..Default::default()
                };
                all(client.open_session(timed(request, time)).await).await
            }
            Self::HandleHits => {
                let mut client = client!(v1::hit_service_client::HitServiceClient<_>);
                let begin = v1::BeginHits {
                    vm,
                    probes: Some(v1::ProbeSelector {
                        names: vec!["kept".into()],
                        ..Default::default()
                    }),
                    answer_ms: 60_000,
                };
                let first = v1::HandleHitsRequest {
                    request: Some(v1::handle_hits_request::Request::Begin(begin)),
                };
                let (_until_it_ends, requests) = first_of(first);
                all(client.handle_hits(timed(requests, time)).await).await
            }
            Self::Debug => {
                let mut client = client!(v1::debug_service_client::DebugServiceClient<_>);
                let attach = v1::AttachDebugger { vm };
                let first = v1::DebugRequest {
                    request: Some(v1::debug_request::Request::Attach(attach)),
                };
                let (_until_it_ends, requests) = first_of(first);
                all(client.debug(timed(requests, time)).await).await
            }
            Self::AttachConsole => {
                let mut client = client!(v1::console_service_client::ConsoleServiceClient<_>);
                let first = v1::AttachConsoleRequest {
                    vm,
                    ..Default::default()
                };
                let (_until_it_ends, requests) = first_of(first);
                all(client.attach_console(timed(requests, time)).await).await
            }
            Self::UploadImage => {
                let mut client = client!(v1::image_service_client::ImageServiceClient<_>);
                let begin = v1::BeginImage {
                    name: "never-whole".into(),
                    size: 1,
                    sha256: "0".repeat(64),
                };
                let first = v1::UploadImageRequest {
                    part: Some(v1::upload_image_request::Part::Begin(begin)),
                };
                let (_until_it_ends, requests) = first_of(first);
                let request = timed(requests, time);
                client.upload_image(request).await.map(drop)
            }
            Self::Watch => {
                let mut client = HealthClient::with_origin(bare, origin);
                let request = HealthCheckRequest::default();
                all(client.watch(timed(request, time)).await).await
            }
        }
    }
}

/// Returns a stream of requests that has this one, and that ends when the sender is dropped: a client that gives a call
/// up sends no more.
fn first_of<T>(first: T) -> (mpsc::Sender<T>, ReceiverStream<T>) {
    let (sender, requests) = mpsc::channel(1);
    // The channel has room for one.
    let _ = sender.try_send(first);
    (sender, ReceiverStream::new(requests))
}

fn timed<T>(message: T, time: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(time) = time {
        request.set_timeout(time);
    }
    request
}

/// Reads an answer to its end.
async fn all<T>(
    answer: Result<tonic::Response<tonic::Streaming<T>>, Status>,
) -> Result<(), Status> {
    let mut messages = answer?.into_inner();
    while messages.message().await?.is_some() {}
    Ok(())
}

/// What calls that wait need.
#[derive(Clone, Debug)]
struct Waiting {
    bare: Bare,
    /// A bzImage that never finishes unpacking itself.
    endless: PathBuf,
}

/// A server with a VM whose guest has not run yet, so that nothing happens to it.
struct Guest {
    server: Server,
    client: Client,
    folder: TempDir,
    waiting: Waiting,
}

impl Guest {
    async fn new(cx: &Context) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(at(name), bytes).map_err(Failure::io("write a kernel"))
        };
        write("kernel", &sessions::kernel()?)?;
        write("endless", &unpack::endless()?)?;
        let server = Server::start_with(cx, |command| {
            command.arg("--images").arg(at("images"));
            let metrics = format!("unix:{}", at("metrics").display());
            command.args(["--metrics", &metrics]);
        })?;
        let client = server.client().await?;
        let request = CreateVmRequest {
            name: VM.into(),
            kernel: at("kernel").to_string_lossy().into_owned(),
            memory_mib: 64,
            hold: true,
            ..Default::default()
        };
        client.create_vm(request).await?;
        let probe = spec::parse("kept=body").map_err(|error| wrong!("{error}"))?;
        client.register_probes(VM, vec![probe]).await?;
        let waiting = Waiting {
            bare: Bare::connect(&server.endpoint).await?,
            endless: at("endless"),
        };
        Ok(Self {
            server,
            client,
            folder,
            waiting,
        })
    }

    async fn metrics(&self) -> Result<String, Failure> {
        http::get_by_socket(&self.folder.path().join("metrics"), "/metrics").await
    }

    /// Waits until the samples whose names begin with `samples` have this sum.
    async fn until(&self, samples: &str, expected: u32) -> Result<(), Failure> {
        loop {
            let metrics = self.metrics().await?;
            let found = metrics.lines().filter(|line| line.starts_with(samples));
            let values = found.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            if values.sum::<f64>() == f64::from(expected) {
                return Ok(());
            }
        }
    }

    /// Waits until `count` calls of this kind are under way.
    async fn under_way(&self, kind: &str, count: u32) -> Result<(), Failure> {
        let sample = format!("vmprobe_calls_in_progress{{kind=\"{kind}\"}}");
        self.until(&sample, count).await
    }

    /// Returns how many calls have ended, by method and code as in metrics. A call may be counted after its client has
    /// its answer, so this waits until none is under way.
    async fn ended(&self) -> Result<BTreeMap<String, String>, Failure> {
        self.until("vmprobe_calls_in_progress{", 0).await?;
        let metrics = self.metrics().await?;
        let ended = metrics.lines().filter_map(|line| {
            let (call, count) = line.strip_prefix("vmprobe_calls_total")?.rsplit_once(' ')?;
            Some((call.to_owned(), count.to_owned()))
        });
        Ok(ended.collect())
    }

    /// Checks that since then one call of this method has ended, with this code, or with any.
    async fn check_ended(
        &self,
        before: &BTreeMap<String, String>,
        method: &str,
        code: Option<&str>,
    ) -> Result<(), Failure> {
        let mut after = self.ended().await?;
        after.retain(|call, count| before.get(call) != Some(count));
        let calls: Vec<_> = after.into_keys().collect();
        let expected = match code {
            Some(code) => format!("{{method=\"{method}\",code=\"{code}\"}}"),
            None => format!("{{method=\"{method}\",code=\""),
        };
        check!(
            calls.len() == 1 && calls[0].starts_with(&expected),
            "found {calls:?}, expected one call {expected}"
        );
        Ok(())
    }

    /// Checks that a call has left nothing behind.
    async fn nothing_left(&self, call: Call) -> Result<(), Failure> {
        // A VM's process notices it a moment later.
        let streams = format!("vmprobe_event_streams{{vm=\"{VM}\"}}");
        self.until(&streams, 0).await?;
        while self.server.vm_processes()?.len() > 1 {
            tokio::task::yield_now().await;
        }
        while self.client.list_probes(VM).await?[0].attended {}
        let vms = self.client.list_vms().await?;
        let names: Vec<_> = vms.iter().map(|vm| &*vm.name).collect();
        check_eq!(names, [VM], "VMs after {call:?}");
        check_eq!(self.client.list_images().await?.len(), 0, "images");
        Ok(())
    }
}

fn ended(cx: &Context) -> TestResult {
    cx.block_on(async {
        let guest = Guest::new(cx).await?;
        for call in Call::ALL {
            let before = guest.ended().await?;
            let status = call.make(guest.waiting.clone(), Some(SHORT)).await;
            check_eq!(status.code(), Code::DeadlineExceeded, "{call:?}: {status}");
            guest
                .check_ended(&before, &call.method(), Some("DEADLINE_EXCEEDED"))
                .await?;
            guest.nothing_left(call).await?;
        }
        // Another debugger and another client that answers hits are let in: the place of the first one is free again.
        for call in [Call::Debug, Call::HandleHits] {
            let status = call.make(guest.waiting.clone(), Some(SHORT)).await;
            check_eq!(status.code(), Code::DeadlineExceeded, "{call:?}: {status}");
        }
        pass_with(format!("{} calls", Call::ALL.len()))
    })
}

fn given_up(cx: &Context) -> TestResult {
    cx.block_on(async {
        let guest = Guest::new(cx).await?;
        for call in Call::ALL {
            let before = guest.ended().await?;
            let made = tokio::spawn(call.make(guest.waiting.clone(), None));
            guest.under_way(call.kind(), 1).await?;
            made.abort();
            let code = (!call.has_messages()).then_some("CANCELLED");
            guest.check_ended(&before, &call.method(), code).await?;
            guest.nothing_left(call).await?;
        }
        pass_with(format!("{} calls", Call::ALL.len()))
    })
}

fn without_message(cx: &Context) -> TestResult {
    cx.block_on(async {
        let guest = Guest::new(cx).await?;
        let methods = methods()?;
        for method in &methods {
            let before = guest.ended().await?;
            let bare = guest.waiting.bare.clone();
            let request = Request::new(tokio_stream::pending());
            let made = tokio::spawn(call_with_nothing(bare, method.path.clone(), request));
            guest.until("vmprobe_calls_in_progress{", 1).await?;
            made.abort();
            guest
                .check_ended(&before, &method.name, Some("CANCELLED"))
                .await?;
        }
        pass_with(format!("{} methods", methods.len()))
    })
}

/// A method of the protocol.
struct Method {
    /// Its name in metrics.
    name: String,
    path: PathAndQuery,
}

/// Returns all methods.
fn methods() -> Result<Vec<Method>, Failure> {
    let set = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET);
    let set = set.map_err(|error| wrong!("the protocol's descriptors: {error}"))?;
    let mut methods = Vec::new();
    for service in set.file.iter().flat_map(|file| &file.service) {
        for method in &service.method {
            let name = format!("{}/{}", service.name(), method.name());
            let path = PathAndQuery::try_from(format!("/vmprobe.v1.{name}"));
            let path = path.map_err(|error| wrong!("{error}"))?;
            methods.push(Method { name, path });
        }
    }
    let count = methods.len();
    check!(count > 30, "too few methods: {count}");
    Ok(methods)
}

/// Calls a method with a message without fields.
async fn call_with_nothing(
    bare: Bare,
    path: PathAndQuery,
    request: Request<impl Stream<Item = ()> + Send + 'static>,
) -> Result<Code, Failure> {
    let origin = "http://vmprobed".parse().unwrap_or_default();
    let mut grpc = Grpc::with_origin(bare, origin);
    let ready = grpc.ready().await;
    ready.map_err(|error| wrong!("the connection has ended: {error}"))?;
    let codec = ProstCodec::<(), ()>::default();
    let answer = grpc.streaming(request, path, codec).await;
    Ok(answer.err().map_or(Code::Ok, |status| status.code()))
}

/// Calls each method of the protocol with an empty message and no time.
fn no_time(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let bare = Bare::connect(&server.endpoint).await?;
        let methods = methods()?;
        for Method { name, path } in &methods {
            let request = timed(tokio_stream::once(()), Some(Duration::ZERO));
            let code = call_with_nothing(bare.clone(), path.clone(), request).await?;
            check_eq!(code, Code::DeadlineExceeded, "{name}");
        }
        pass_with(format!("{} methods", methods.len()))
    })
}

fn batches(cx: &Context) -> TestResult {
    /// Probes of a batch, which takes some tens of milliseconds.
    const BATCH: u64 = 1000;
    cx.block_on(async {
        let guest = Guest::new(cx).await?;
        let count = async || {
            let stats = guest.client.vm_stats(VM, 0, ProbeOrder::Unspecified, 0);
            let sums = stats.await?.probe_sums.unwrap_or_default();
            // Without the probe that is always there.
            Ok::<_, Failure>(sums.count - 1)
        };
        let mut answered = 0;
        for time in [1, 3, 10, 20, 40, 80, 160, 320, 60_000] {
            let probe = |number| {
                let text = format!("of{time}_{number}=body");
                spec::parse(&text).map_err(|error| wrong!("{error}"))
            };
            let probes = (0..BATCH).map(probe).collect::<Result<Vec<_>, _>>()?;
            let request = v1::RegisterProbesRequest {
                vm: VM.into(),
                probes,
                ..Default::default()
            };
            let origin = "http://vmprobed".parse().unwrap_or_default();
            let bare = guest.waiting.bare.clone();
            let client = v1::probe_service_client::ProbeServiceClient::with_origin(bare, origin);
            let request = timed(request, Some(Duration::from_millis(time)));
            let mut client = client.max_decoding_message_size(usize::MAX);
            match client.register_probes(request).await {
                Ok(_) => answered += BATCH,
                Err(status) => {
                    check_eq!(status.code(), Code::DeadlineExceeded, "{time} ms: {status}");
                }
            }
            // The registration may still be completed a little later, but must never stop in the middle.
            for _ in 0..20 {
                let count = count().await?;
                check!(
                    count % BATCH == 0 && count >= answered,
                    "there are {count} probes after {time} ms, of whole batches of {BATCH}"
                );
            }
        }
        check!(answered > 0, "no batch has had time enough");
        let count = count().await?;
        pass_with(format!(
            "{answered} probes were answered, and {count} are there"
        ))
    })
}
