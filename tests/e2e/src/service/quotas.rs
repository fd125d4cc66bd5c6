//! One too many of each thing that the server limits. The refusal names the option that sets the limit, in its message
//! and in a field.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::{StreamExt, pending};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use vmprobe_client::v1::image_service_client::ImageServiceClient;
use vmprobe_client::v1::probe_service_client::ProbeServiceClient;
use vmprobe_client::v1::session_service_client::SessionServiceClient;
use vmprobe_client::v1::upload_image_request::Part;
use vmprobe_client::v1::vm_service_client::VmServiceClient;
use vmprobe_client::v1::{
    BeginImage, CreateVmRequest, ListVmsRequest, OpenSessionRequest, ProbeSpec,
    RegisterProbesRequest, SymbolPlace, UploadImageRequest, probe_spec,
};

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::tiny::sessions;

pub const QUOTAS: Test = Test {
    name: "one_too_many_of_each_thing_is_refused_by_the_option_that_limits_it",
    ids: &["SV05"],
    needs: Needs::Tiny,
    run: quotas,
};

/// The VM of a server.
const VM: &str = "limited";
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(5);
/// More than a MiB.
const LARGE: usize = 2 << 20;

/// Limits of which one too many is tried, with the value that is set. For things with several limits, the one under
/// test is smaller than the others.
const LIMITS: [(&str, &str); 14] = [
    ("--max-vms", "1"),
    ("--max-guest-memory", "64"),
    ("--max-file", "1"),
    ("--max-probes", "1"),
    ("--max-calls", "1"),
    ("--max-streams", "1"),
    ("--max-image", "1"),
    ("--max-images", "1"),
    ("--max-client-images", "1"),
    ("--max-image-count", "1"),
    ("--max-uploads", "1"),
    ("--max-sessions", "1"),
    ("--max-connections", "1"),
    ("--max-request", "1"),
];

/// The limit beyond which calls wait and aren't refused.
const WAITS: &str = "--max-creations";

fn quotas(cx: &Context) -> TestResult {
    let known: BTreeSet<String> = LIMITS.iter().map(|(option, _)| (*option).into()).collect();
    let mut there = options(cx)?;
    check!(there.remove(WAITS), "there is no {WAITS}");
    check_eq!(there, known, "the options that limit something");
    cx.block_on(async {
        for (option, limit) in LIMITS {
            let limited = Limited::start(cx, option, limit).await?;
            let status = limited.one_too_many(option).await?;
            let what = format!("{option}: {status}");
            check_eq!(status.code(), Code::ResourceExhausted, "{what}");
            check!(status.message().contains(option), "{what}");
            let details = status.get_details_quota_failure();
            let details = details.ok_or_else(|| wrong!("no details of {what}"))?;
            let subjects: Vec<_> = details.violations.iter().map(|it| &*it.subject).collect();
            check_eq!(subjects, [option], "the subject of {what}");
        }
        pass_with(format!("{} limits", LIMITS.len()))
    })
}

/// The options `--max-...` of the server.
fn options(cx: &Context) -> Result<BTreeSet<String>, Failure> {
    let help = Command::new(cx.program("vmprobed")).arg("--help").output();
    let help = help.map_err(Failure::io("run vmprobed"))?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let words = help
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let options = words.filter(|word| word.starts_with("--max-"));
    Ok(options.map(str::to_owned).collect())
}

/// A server with a limit.
struct Limited {
    server: Server,
    folder: TempDir,
    channel: Channel,
}

impl Limited {
    async fn start(cx: &Context, option: &str, limit: &str) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let server = Server::start_with(cx, |command| {
            command.args([option, limit]);
            command.arg("--images").arg(folder.path().join("images"));
        })?;
        let kernel = folder.path().join("kernel");
        std::fs::write(&kernel, sessions::kernel()?).map_err(Failure::io("write a kernel"))?;
        Ok(Self {
            channel: server.channel().await?,
            server,
            folder,
        })
    }

    fn kernel(&self) -> PathBuf {
        self.folder.path().join("kernel")
    }

    /// Returns how the first call beyond the limit ends.
    async fn one_too_many(&self, option: &str) -> Result<Status, Failure> {
        let refused = match option {
            "--max-vms" | "--max-guest-memory" => {
                self.create(self.request(VM)).await?;
                self.create(self.request("other")).await.err()
            }
            "--max-file" => {
                let large = vec![0; LARGE];
                std::fs::write(self.kernel(), large).map_err(Failure::io("write a kernel"))?;
                self.create(self.request(VM)).await.err()
            }
            "--max-probes" => {
                self.create(self.request(VM)).await?;
                self.register(&["one", "other"]).await.err()
            }
            "--max-request" => {
                let large = CreateVmRequest {
                    cmdline: "x".repeat(LARGE),
                    ..self.request(VM)
                };
                let refused = self.create(large).await.err();
                let refused = refused.ok_or_else(|| wrong!("a long request was taken"))?;
                check_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
                self.create(self.request(VM)).await?;
                self.register(&[&"x".repeat(LARGE)]).await.err()
            }
            "--max-calls" => Some(self.call_too_many().await),
            "--max-streams" => {
                let _held = self.watch().await?;
                self.watch().await.err()
            }
            "--max-connections" => {
                let mut vms = VmServiceClient::new(self.channel.clone());
                vms.list_vms(ListVmsRequest::default()).await?;
                let mut vms = VmServiceClient::new(self.server.channel().await?);
                vms.list_vms(ListVmsRequest::default()).await.err()
            }
            "--max-sessions" => {
                self.create(self.request(VM)).await?;
                let _held = self.open().await?;
                self.open().await.err()
            }
            "--max-uploads" => {
                let hold = || {
                    let mut images = ImageServiceClient::new(self.channel.clone());
                    let first = tokio_stream::once(begin(1)).chain(pending());
                    tokio::spawn(async move { images.upload_image(first).await.map(drop) })
                };
                // An upload that ends otherwise was let in.
                let refused = async || match self.upload(1).await {
                    status if status.code() == Code::ResourceExhausted => Err(status),
                    _ => Ok(()),
                };
                Some(beside(hold, refused).await)
            }
            "--max-image-count" => {
                let content = vec![begin(4), part(Part::Chunk(b"test".to_vec()))];
                let mut images = ImageServiceClient::new(self.channel.clone());
                images.upload_image(tokio_stream::iter(content)).await?;
                Some(self.upload(5).await)
            }
            // Limits in bytes.
            _ => Some(self.upload(LARGE as u64).await),
        };
        refused.ok_or_else(|| wrong!("{option} limits nothing"))
    }

    fn request(&self, name: &str) -> CreateVmRequest {
        CreateVmRequest {
            name: name.into(),
            kernel: self.kernel().to_string_lossy().into_owned(),
            memory_mib: 64,
            hold: true,
            ..Default::default()
        }
    }

    async fn create(&self, request: CreateVmRequest) -> Result<(), Status> {
        let mut vms = VmServiceClient::new(self.channel.clone());
        vms.create_vm(request).await.map(drop)
    }

    async fn register(&self, names: &[&str]) -> Result<(), Status> {
        let probe = |name: &&str| ProbeSpec {
            name: (*name).to_owned(),
            place: Some(probe_spec::Place::Symbol(SymbolPlace {
                symbol: "body".into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let request = RegisterProbesRequest {
            vm: VM.into(),
            probes: names.iter().map(probe).collect(),
            ..Default::default()
        };
        let mut probes = ProbeServiceClient::new(self.channel.clone());
        probes.register_probes(request).await.map(drop)
    }

    /// Makes a call beside one whose request never comes.
    async fn call_too_many(&self) -> Status {
        let hold = || {
            let channel = self.channel.clone();
            tokio::spawn(async { drop(super::limits::unfinished(channel).await) })
        };
        let mut vms = VmServiceClient::new(self.channel.clone());
        let mut call = async || vms.list_vms(ListVmsRequest::default()).await.map(drop);
        beside(hold, &mut call).await
    }

    async fn watch(&self) -> Result<impl Sized, Status> {
        let mut health = HealthClient::new(self.channel.clone());
        let mut watch = health
            .watch(HealthCheckRequest::default())
            .await?
            .into_inner();
        watch.message().await?;
        Ok(watch)
    }

    async fn open(&self) -> Result<impl Sized, Status> {
        let mut sessions = SessionServiceClient::new(self.channel.clone());
        let request = OpenSessionRequest {
            vm: VM.into(),
            ..Default::default()
        };
        let mut session = sessions.open_session(request).await?.into_inner();
        session.message().await?;
        Ok(session)
    }

    /// Returns how an upload ends that announces `size` bytes and sends none.
    async fn upload(&self, size: u64) -> Status {
        let mut images = ImageServiceClient::new(self.channel.clone());
        let ended = images.upload_image(tokio_stream::once(begin(size))).await;
        ended.err().unwrap_or_else(|| Status::ok("it was taken"))
    }
}

/// Returns how a call is refused beside one that is held. The two arrive in any order, so each is retried until the
/// other one is there.
async fn beside<T>(
    hold: impl Fn() -> JoinHandle<T>,
    mut call: impl AsyncFnMut() -> Result<(), Status>,
) -> Status {
    let mut held = hold();
    loop {
        if let Err(status) = call().await {
            held.abort();
            return status;
        }
        if held.is_finished() {
            held = hold();
        }
        // Leaves the place free for the held call.
        sleep(PAUSE).await;
    }
}

fn part(part: Part) -> UploadImageRequest {
    UploadImageRequest { part: Some(part) }
}

/// The first message of an image of `size` bytes; one of 4 bytes is `test`.
fn begin(size: u64) -> UploadImageRequest {
    const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    part(Part::Begin(BeginImage {
        name: String::new(),
        size,
        sha256: match size {
            4 => TEST.to_owned(),
            _ => "0".repeat(64),
        },
    }))
}
