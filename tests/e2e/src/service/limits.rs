//! Limits that clients can't exceed: waiting for a file, and the server's other limits.

use std::process::Command;

use tokio::task::JoinSet;
use tokio_stream::{StreamExt, pending};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use vmprobe_client::v1::{CreateVmRequest, ListVmsRequest, ListVmsResponse};
use vmprobe_client::{Client, Message, spec};

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};
use crate::tiny::sessions;
use crate::tiny::vm::{Tiny, VM};

pub const FILES: Test = Test {
    name: "files_that_are_not_ordinary_are_refused_at_once_however_many_ask",
    ids: &["SV05"],
    needs: Needs::None,
    run: files,
};

pub const CALLS: Test = Test {
    name: "calls_beyond_the_limit_are_refused_and_the_others_go_on",
    ids: &["SV05"],
    needs: Needs::None,
    run: calls,
};

pub const STREAMS: Test = Test {
    name: "streams_beyond_the_limit_are_refused_and_calls_go_on",
    ids: &["SV05"],
    needs: Needs::None,
    run: streams,
};

pub const SIZES: Test = Test {
    name: "files_and_memory_beyond_the_limit_are_refused_by_its_name",
    ids: &["SV05"],
    needs: Needs::None,
    run: sizes,
};

pub const VMS: Test = Test {
    name: "vms_memory_and_probes_beyond_the_limit_are_refused_until_others_have_gone",
    ids: &["SV05"],
    needs: Needs::Tiny,
    run: vms,
};

pub const QUEUE: Test = Test {
    name: "tiny_no_more_events_wait_for_a_client_than_the_server_s_owner_says",
    ids: &["SV03"],
    needs: Needs::Tiny,
    run: queue,
};

/// VMs that a server has at most, and more than those.
const MOST: &str = "16";
const MANY: usize = 25;

fn write(name: &str, bytes: &[u8]) -> Result<String, Failure> {
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).map_err(Failure::io("write a test file"))?;
    Ok(path.to_string_lossy().into_owned())
}

fn start(cx: &Context, options: &[&str]) -> Result<Server, Failure> {
    Server::start_with(cx, |command| {
        command.args(options);
    })
}

fn request(kernel: &str, initramfs: &str) -> CreateVmRequest {
    CreateVmRequest {
        kernel: kernel.to_owned(),
        initramfs: initramfs.to_owned(),
        memory_mib: 64,
        ..Default::default()
    }
}

async fn refusal(client: &Client, request: CreateVmRequest) -> Result<String, Failure> {
    match client.create_vm(request.clone()).await {
        Ok(_) => Err(wrong!("{request:?} was accepted")),
        Err(error) => Ok(format!("{error:?}: {error}")),
    }
}

/// Checks that something was refused by a limit of the server, and that the refusal names the option that raises it.
fn check_limit(refusal: &str, option: &str) -> Result<(), Failure> {
    check!(
        refusal.starts_with("ResourceExhausted") && refusal.contains(option),
        "not refused by {option}: {refusal}"
    );
    Ok(())
}

fn files(cx: &Context) -> TestResult {
    let kernel = write("tiny", &crate::tiny::power_off_image()?)?;
    let fifo = std::env::temp_dir().join("fifo");
    let fifo = fifo.to_string_lossy().into_owned();
    let made = Command::new("mkfifo").arg(&fifo).status();
    let made = made.is_ok_and(|status| status.success());
    let mut paths = vec![
        "/proc/kmsg",
        "/proc/kcore",
        "/dev/zero",
        "/dev/tty",
        "/proc",
    ];
    if made {
        paths.push(&fifo);
    }
    cx.block_on(async {
        let server = start(cx, &["--max-vms", MOST])?;
        let mut clients = JoinSet::new();
        for path in paths {
            for request in [request(path, ""), request(&kernel, path)] {
                for _ in 0..MANY {
                    let client = server.client().await?;
                    let request = request.clone();
                    clients
                        .spawn(async move { (client.create_vm(request.clone()).await, request) });
                }
                while let Some(ended) = clients.join_next().await {
                    let (answer, request) = ended.map_err(|error| wrong!("{error}"))?;
                    let error = match answer {
                        Ok(_) => return Err(wrong!("{request:?} was accepted")),
                        Err(error) => format!("{error:?}: {error}"),
                    };
                    // Several at the same time may be more than the server accepts.
                    check!(
                        ["InvalidArgument", "ResourceExhausted"]
                            .iter()
                            .any(|code| error.starts_with(code)),
                        "{request:?}: {error}"
                    );
                }
                let alone = refusal(&server.client().await?, request.clone()).await?;
                check!(
                    alone.contains("can't be") || alone.contains("is empty"),
                    "{request:?}: {alone}"
                );
            }
        }
        let left = server.client().await?.list_vms().await?.len();
        check_eq!(left, 0, "VMs left behind");
        pass()
    })
}

/// Makes a call whose request never comes. It retries until it is let in: another call may have the last place for a
/// moment.
pub async fn unfinished(channel: Channel) -> Result<(), Status> {
    let mut grpc = Grpc::new(channel);
    loop {
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unknown(error.to_string()))?;
        let codec = ProstCodec::<ListVmsRequest, ListVmsResponse>::default();
        let path = PathAndQuery::from_static("/vmprobe.v1.VmService/ListVms");
        let answer = grpc.client_streaming(Request::new(pending()), path, codec);
        match answer.await {
            Err(status) if status.code() == Code::ResourceExhausted => {}
            ended => return ended.map(drop),
        }
    }
}

fn calls(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = start(cx, &["--max-calls", "2"])?;
        let mut held = JoinSet::new();
        for _ in 0..2 {
            held.spawn(unfinished(server.channel().await?));
        }
        let client = server.client().await?;
        let mut health = HealthClient::new(server.channel().await?);
        // Retries until both calls have arrived.
        let refused = loop {
            if let Err(error) = client.list_vms().await {
                break format!("{error:?}: {error}");
            }
            if let Some(ended) = held.try_join_next() {
                return Err(wrong!(
                    "a call whose request never comes has ended: {ended:?}"
                ));
            }
        };
        check_limit(&refused, "--max-calls")?;
        health.check(HealthCheckRequest::default()).await?;
        held.abort_all();
        while held.join_next().await.is_some() {}
        // Retries until the server has noticed that they are gone.
        while client.list_vms().await.is_err() {}
        pass()
    })
}

fn streams(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = start(cx, &["--max-streams", "2"])?;
        let watch = async || {
            let mut health = HealthClient::new(server.channel().await?);
            let answers = health.watch(HealthCheckRequest::default()).await?;
            let mut answers = answers.into_inner();
            let first = answers.next().await;
            first.ok_or_else(|| wrong!("a watch has ended"))??;
            Ok::<_, Failure>(answers)
        };
        let (first, second) = (watch().await?, watch().await?);
        let refused = match watch().await {
            Err(Failure::Status(status)) => *status,
            other => return Err(wrong!("a third stream: {other:?}")),
        };
        check_eq!(refused.code(), Code::ResourceExhausted, "a third stream");
        check!(refused.message().contains("--max-streams"), "{refused}");
        server.client().await?.list_vms().await?;
        drop(first);
        // Retries until the server has noticed that it is gone.
        while watch().await.is_err() {}
        drop(second);
        pass()
    })
}

/// If the queue has room for one event, each batch is one event, and all others are lost and counted.
fn queue(cx: &Context) -> TestResult {
    let kernel = sessions::kernel()?;
    cx.block_on(async {
        let guest = Tiny::new_with(cx, &kernel, 64, |command| {
            command.args(["--event-queue", "1"]);
        })
        .await?;
        guest
            .client
            .register_probes(VM, sessions::probe("one=body")?)
            .await?;
        let mut stream = guest.client.events(VM, Vec::new()).await?;
        guest.start().await?;
        while guest.client.list_probes(VM).await?[0].hits < 1000 {}
        guest.client.pause_vm(VM).await?;
        let hits = guest.client.list_probes(VM).await?[0].hits;
        let (mut came, mut lost) = (0, 0);
        while came + lost < hits {
            let next = stream.next().await?;
            let Some(Message::Batch { lost: more, events }) = next else {
                return Err(wrong!("the stream: {next:?}"));
            };
            check!(events.len() <= 1, "a batch of {} events", events.len());
            came += events.len() as u64;
            lost += more;
        }
        check_eq!(came + lost, hits, "events that came or were lost");
        check!(came > 0 && lost > 0, "{came} events came, {lost} were lost");
        pass_with(format!("{came} events came, {lost} were lost"))
    })
}

fn sizes(cx: &Context) -> TestResult {
    let kernel = write("tiny", &crate::tiny::power_off_image()?)?;
    let large = write("large", &[])?;
    let file = std::fs::File::options().write(true).open(&large);
    file.and_then(|file| file.set_len((1 << 20) + 1))
        .map_err(Failure::io("make a large file"))?;
    cx.block_on(async {
        let server = start(cx, &["--max-file", "1", "--max-guest-memory", "100"])?;
        let client = server.client().await?;
        for request in [request(&large, ""), request(&kernel, &large)] {
            check_limit(&refusal(&client, request).await?, "--max-file")?;
        }
        let request = CreateVmRequest {
            memory_mib: 101,
            ..request(&kernel, "")
        };
        check_limit(&refusal(&client, request).await?, "--max-guest-memory")?;
        pass()
    })
}

fn vms(cx: &Context) -> TestResult {
    const VM: &str = "a";
    let kernel = write("tiny", &crate::tiny::power_off_image()?)?;
    let request = |name: &str| CreateVmRequest {
        name: name.to_owned(),
        hold: true,
        ..request(&kernel, "")
    };
    let probes = |names: [&str; 2]| {
        let probe = |name: &str| spec::parse(&format!("{name}=_stext"));
        let [first, second] = names.map(probe);
        let specs = first.and_then(|first| Ok(vec![first, second?]));
        specs.map_err(|error| wrong!("{error}"))
    };
    cx.block_on(async {
        let options = [
            "--max-vms",
            "2",
            "--max-guest-memory",
            "130",
            "--max-probes",
            "3",
        ];
        let server = start(cx, &options)?;
        let client = server.client().await?;
        client.create_vm(request(VM)).await?;
        let larger = CreateVmRequest {
            memory_mib: 67,
            ..request("b")
        };
        check_limit(&refusal(&client, larger).await?, "--max-guest-memory")?;
        client.create_vm(request("b")).await?;
        check_limit(&refusal(&client, request("c")).await?, "--max-vms")?;
        client.delete_vm("b").await?;
        client.create_vm(request("c")).await?;

        client.register_probes(VM, probes(["p", "q"])?).await?;
        let more = client.register_probes(VM, probes(["r", "s"])?).await;
        let refused = more.err().map(|error| format!("{error:?}: {error}"));
        check_limit(&refused.unwrap_or_default(), "--max-probes")?;
        check_eq!(client.list_probes(VM).await?.len(), 2, "probes");
        client.register_probes("c", probes(["r", "s"])?).await?;
        pass()
    })
}
