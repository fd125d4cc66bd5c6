//! The server as clients see it, without any guest, and the report of `doctor`.

pub mod deadlines;
mod declared;
mod devices;
mod files;
mod fleets;
mod images;
mod installed;
mod limits;
mod no_kvm;
mod owners;
mod processes;
mod quotas;
mod sandboxed;
mod security;

use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::Value;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use vmprobe_client::Client;
use vmprobe_client::v1::CreateVmRequest;

use crate::context::{Context, Place};
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "health_is_serving_and_reflection_lists_the_services",
        ids: &["SV01"],
        needs: Needs::None,
        run: health_and_reflection,
    },
    Test {
        name: "a_port_in_use_is_refused_by_name",
        ids: &["SV01"],
        needs: Needs::None,
        run: port_in_use,
    },
    Test {
        name: "kernels_that_are_none_are_refused_and_leave_nothing_behind",
        ids: &["SV01"],
        needs: Needs::None,
        run: bad_kernels,
    },
    Test {
        name: "doctor_says_what_this_kvm_is",
        ids: &["VM07"],
        needs: Needs::None,
        run: doctor,
    },
    declared::COME_BACK,
    devices::REFUSED,
    fleets::TRACED,
    installed::CONFIGURED,
    installed::COMPLETED,
    limits::FILES,
    limits::CALLS,
    limits::STREAMS,
    limits::SIZES,
    limits::VMS,
    limits::QUEUE,
    no_kvm::MISSING,
    no_kvm::CLOSED,
    processes::KILLED,
    processes::SERVER_KILLED,
    processes::UNPRIVILEGED,
    sandboxed::WITHOUT_CLONE3,
    security::ROLES,
    security::REFUSED,
    files::FOLDERS,
    files::NONE,
    files::SWAPPED,
    images::UPLOADS,
    images::CRASH,
    images::CLIENTS,
    images::GUEST,
    owners::OWNERS,
    quotas::QUOTAS,
];

fn health_and_reflection(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let channel = server.channel().await?;
        let mut health = HealthClient::new(channel.clone());
        for service in ["", "vmprobe.v1.VmService", "vmprobe.v1.EventService"] {
            let request = HealthCheckRequest {
                service: service.into(),
            };
            let answer = health.check(request).await?.into_inner();
            check_eq!(
                answer.status(),
                ServingStatus::Serving,
                "health of {service:?}"
            );
        }
        for names in [
            services_v1(channel.clone()).await?,
            services_v1alpha(channel).await?,
        ] {
            for name in ["Vm", "Console", "Host", "Image", "Probe", "Event", "Symbol"] {
                let name = format!("vmprobe.v1.{name}Service");
                check!(names.contains(&name), "{name} is not in {names:?}");
            }
        }
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        pass()
    })
}

/// Checks the names of the services, by one version of the reflection protocol, and that a file is
/// described.
macro_rules! services {
    ($name:ident, $version:ident) => {
        async fn $name(channel: Channel) -> Result<Vec<String>, Failure> {
            use pb::server_reflection_request::MessageRequest as Ask;
            use pb::server_reflection_response::MessageResponse as Answer;
            use tonic_reflection::pb::$version as pb;

            let ask = |message| pb::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(message),
            };
            let asked = [
                ask(Ask::ListServices(String::new())),
                ask(Ask::FileContainingSymbol("vmprobe.v1.ProbeService".into())),
            ];
            let mut client = pb::server_reflection_client::ServerReflectionClient::new(channel);
            let answers = client
                .server_reflection_info(tokio_stream::iter(asked))
                .await?;
            let mut answers = answers.into_inner();
            let mut next = async || {
                let answer = answers.next().await;
                let answer = answer.ok_or_else(|| wrong!("reflection gave no answer"))??;
                Ok::<_, Failure>(answer.message_response)
            };
            let list = match next().await? {
                Some(Answer::ListServicesResponse(list)) => list,
                other => return Err(wrong!("reflection answered with {other:?}, not a list")),
            };
            match next().await? {
                Some(Answer::FileDescriptorResponse(file)) => {
                    let bytes = file.file_descriptor_proto.concat();
                    let text = String::from_utf8_lossy(&bytes);
                    check!(text.contains("RegisterProbes"), "not the service's file");
                }
                other => return Err(wrong!("reflection answered with {other:?}, not a file")),
            }
            Ok(list
                .service
                .into_iter()
                .map(|service| service.name)
                .collect())
        }
    };
}

services!(services_v1, v1);
services!(services_v1alpha, v1alpha);

fn port_in_use(cx: &Context) -> TestResult {
    let taken = TcpListener::bind("127.0.0.1:0").map_err(Failure::io("take a port"))?;
    let address = taken
        .local_addr()
        .map_err(Failure::io("learn the port"))?
        .to_string();
    let output = Command::new(cx.program("vmprobed"))
        .args(["--plain-text", "--listen", &address])
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::io("start vmprobed"))?;
    check_eq!(output.status.code(), Some(2), "exit code");
    let text = String::from_utf8_lossy(&output.stderr);
    check!(
        text.contains(&format!("{address} is in use")),
        "no port named in {text:?}"
    );
    pass()
}

/// Each bad request: what is wrong, the code, a part of the message.
fn bad_kernels(cx: &Context) -> TestResult {
    let folder = std::env::temp_dir();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(Failure::io("write a test file"))?;
        Ok::<String, Failure>(path.to_string_lossy().into_owned())
    };
    let mut bzimage = vec![0; 0x400];
    bzimage[0x1f1] = 39;
    bzimage[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    bzimage[0x202..0x206].copy_from_slice(b"HdrS");
    bzimage[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
    // An ELF header of a 32-bit ARM program.
    let mut arm = vec![0; 0x40];
    arm[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1, 1]);
    arm[0x12] = 40;
    let tiny = crate::tiny::power_off_image()?;
    let good = write("tiny", &tiny)?;
    let of = |kernel: String| CreateVmRequest {
        kernel,
        memory_mib: 64,
        ..Default::default()
    };
    // Larger than the guest's memory, but sparse.
    let large = write("large", &[])?;
    std::fs::File::options()
        .write(true)
        .open(&large)
        .and_then(|file| file.set_len(100 << 20))
        .map_err(Failure::io("make a large file"))?;
    let cases = [
        (
            CreateVmRequest {
                initramfs: large,
                ..of(good.clone())
            },
            "InvalidArgument",
            "give the guest",
        ),
        (
            of(String::new()),
            "InvalidArgument",
            "the path of a kernel is missing",
        ),
        (
            of("/nonexistent/vmlinuz".into()),
            "InvalidArgument",
            "/nonexistent/vmlinuz can't be read",
        ),
        (of("/proc".into()), "InvalidArgument", "/proc can't be read"),
        (
            of(write("garbage", &[0x5a; 4096])?),
            "InvalidArgument",
            "neither a bzImage nor a vmlinux",
        ),
        (
            of(write("empty", &[])?),
            "InvalidArgument",
            "can't be booted",
        ),
        (
            of(write("truncated", &bzimage)?),
            "InvalidArgument",
            "truncated",
        ),
        (
            of(write("arm", &arm)?),
            "InvalidArgument",
            "can't be booted",
        ),
        (
            CreateVmRequest {
                vcpus: 1000,
                ..of(good.clone())
            },
            "InvalidArgument",
            "1 to 64 vCPUs, not 1000",
        ),
        (
            CreateVmRequest {
                memory_mib: 16,
                ..of(good.clone())
            },
            "InvalidArgument",
            "16 MiB of memory is too little",
        ),
        (
            CreateVmRequest {
                initramfs: "/nonexistent/initrd".into(),
                ..of(good.clone())
            },
            "InvalidArgument",
            "/nonexistent/initrd can't be read",
        ),
        (
            CreateVmRequest {
                name: "a b".into(),
                ..of(good)
            },
            "InvalidArgument",
            "a VM's name has",
        ),
    ];
    all_refused(cx, &cases)
}

/// A request that is refused, with this code and this part of the message.
type Refused = (CreateVmRequest, &'static str, &'static str);

/// Checks that each request is refused, and that nothing is left of it.
fn all_refused(cx: &Context, cases: &[Refused]) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        // The first calls start the runtime's own threads and open files.
        for (request, ..) in cases {
            let _refused = client.create_vm(request.clone()).await;
        }
        let process = server.process();
        let files = process.open_files()?;
        for (request, code, message) in cases {
            let error = match client.create_vm(request.clone()).await {
                Ok(_) => return Err(wrong!("{request:?} was accepted")),
                Err(error) => error,
            };
            check!(
                format!("{error:?}").starts_with(code),
                "{request:?}: {error:?}, not {code}"
            );
            check!(error.to_string().contains(*message), "{request:?}: {error}");
        }
        check_eq!(client.list_vms().await?.len(), 0, "VMs left behind");
        // A process ends when it learns that its VM isn't wanted: soon, but not at once.
        while !server.vm_processes()?.is_empty() || process.open_files()? > files {
            tokio::task::yield_now().await;
        }
        pass()
    })
}

/// In the lab the report is known; elsewhere it must be consistent with its measurements.
fn doctor(cx: &Context) -> TestResult {
    let output = Command::new(cx.program("vmprobed"))
        .args(["doctor", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::io("start vmprobed"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text)
        .map_err(|error| wrong!("doctor's report is no JSON ({error}): {text}"))?;
    let runs_linux = report["runs_linux"] == true;
    let verdict = report["verdict"].as_str().unwrap_or_default();
    check!(!verdict.is_empty(), "the report has no verdict: {text}");
    check_eq!(
        output.status.success(),
        runs_linux,
        "success of the doctor's exit code"
    );
    check!(
        cx.place == Place::Host || runs_linux,
        "the lab runs Linux, but: {verdict}"
    );
    if !runs_linux {
        let advice = report["advice"].as_array().map_or(0, Vec::len);
        check!(
            advice > 0,
            "no advice for a host that can't run Linux: {text}"
        );
    }
    let shape = report["guest"]["int3"]["shape"]
        .as_str()
        .unwrap_or_default();
    let expected: &[&str] = match cx.place {
        Place::LabAmd | Place::LabIntel => &["debug_exit"],
        // The results of upstream KVM and of one that emulates the kernel; empty if there is no
        // KVM.
        Place::Host => &["debug_exit", "internal_error", ""],
    };
    check!(
        expected.contains(&shape),
        "int3 has the shape {shape:?}: {verdict}"
    );
    // A server must report the same to its clients.
    cx.block_on(async {
        let server = Server::start(cx)?;
        let host = Client::connect(&server.endpoint).await?.get_host().await?;
        check_eq!(
            host.runs_linux,
            runs_linux,
            "runs_linux as the server says it"
        );
        pass_with(format!("int3 is {shape}; {verdict}"))
    })
}
