//! The services over a real socket, as far as they need no guest.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use vmprobe_client::v1::condition::Operand;
use vmprobe_client::v1::probe_spec::{Kind, Place};
use vmprobe_client::v1::vm_service_client::VmServiceClient;
use vmprobe_client::v1::{
    Condition, CreateVmRequest, ListVmsRequest, ProbeOptions, ProbeSpec, SymbolPlace, Watchpoint,
};
use vmprobe_client::{Client, ClientError};
use vmprobe_server::{
    BindError, ListenAddress, ServeError, ServeOptions, Server, Settings, VmProgram,
};

struct Running {
    endpoint: String,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    async fn start() -> Self {
        let server = Server::bind(loopback(0)).await.unwrap();
        let endpoint = server.endpoints()[0].clone();
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.serve(async {
            let _ = ended.await;
        }));
        Self {
            endpoint,
            end,
            serving,
        }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.endpoint).await.unwrap()
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.endpoint.clone()).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

fn loopback(port: u16) -> ServeOptions {
    let listen = ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
    let mut settings = Settings::default();
    settings.files.read = vec!["/".into()];
    ServeOptions::new(listen, settings, program())
}

fn program() -> VmProgram {
    VmProgram::Process(env!("CARGO_BIN_EXE_vmprobed").into())
}

fn address(address: u64) -> ProbeSpec {
    ProbeSpec {
        place: Some(Place::Address(address)),
        ..ProbeSpec::default()
    }
}

#[tokio::test]
async fn every_call_on_an_unknown_vm_is_not_found() {
    let running = Running::start().await;
    let client = running.client().await;
    let errors = [
        client.start_vm("a").await.unwrap_err(),
        client.get_vm("a").await.unwrap_err(),
        client.pause_vm("a").await.unwrap_err(),
        client.resume_vm("a").await.unwrap_err(),
        client.kill_vm("a").await.unwrap_err(),
        client.wait_vm("a").await.unwrap_err(),
        client.delete_vm("a").await.unwrap_err(),
        client.read_registers("a", 0).await.unwrap_err(),
        client.read_memory("a", 0, 0, 1).await.unwrap_err(),
        client.attach_console("a").await.unwrap_err(),
        client.register_probes("a", vec![]).await.unwrap_err(),
        client
            .unregister_probes("a", vec![], vec![])
            .await
            .unwrap_err(),
        client.list_probes("a").await.unwrap_err(),
        client.enable_probes("a", vec![], vec![]).await.unwrap_err(),
        client
            .disable_probes("a", vec![], vec![])
            .await
            .unwrap_err(),
        client.arm_probes("a").await.unwrap_err(),
        client.disarm_probes("a").await.unwrap_err(),
        client
            .optimize_probes("a", vec![], vec![])
            .await
            .unwrap_err(),
        client
            .keep_breakpoints("a", vec![], vec![])
            .await
            .unwrap_err(),
        client.set_optimization("a", true).await.unwrap_err(),
        client
            .wait_probes("a", vec![], vec![], Duration::from_secs(10))
            .await
            .unwrap_err(),
        client.blacklist("a", "*").await.unwrap_err(),
        client.events("a", vec![]).await.unwrap_err(),
        client
            .handle_hits("a", vec![1], vec![], Duration::from_secs(1))
            .await
            .unwrap_err(),
        client.lookup_symbols("a", "*", 0).await.unwrap_err(),
        client.resolve_address("a", 0).await.unwrap_err(),
        client.describe_type("a", "file").await.unwrap_err(),
        client.list_types("a", "*").await.unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(&error, ClientError::NotFound(text) if text.contains("`a`")),
            "{error:?}"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_call_without_a_vm_s_name_names_the_field() {
    let running = Running::start().await;
    let error = running.client().await.list_probes("").await.unwrap_err();
    let ClientError::InvalidArgument { fields, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(fields, ["vm"]);
    running.stop().await;
}

#[tokio::test]
async fn a_vm_that_can_t_be_made_leaves_nothing_behind() {
    let running = Running::start().await;
    let client = running.client().await;
    let request = || CreateVmRequest {
        name: "a".into(),
        kernel: "/nonexistent/vmlinuz".into(),
        ..CreateVmRequest::default()
    };
    for _ in 0..2 {
        let error = client.create_vm(request()).await.unwrap_err();
        assert!(!matches!(error, ClientError::AlreadyExists(_)), "{error:?}");
    }
    assert!(client.list_vms().await.unwrap().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn a_bad_probe_on_the_command_line_is_told_before_the_vm_is_made() {
    let running = Running::start().await;
    let request = CreateVmRequest {
        kernel: "/nonexistent/vmlinuz".into(),
        cmdline: "quiet vmprobe.probe=vfs_read;vfs_write+ panic=-1".into(),
        ..CreateVmRequest::default()
    };
    let error = running.client().await.create_vm(request).await.unwrap_err();
    let ClientError::InvalidArgument { message, fields } = error else {
        panic!("{error:?}")
    };
    assert_eq!(fields, ["cmdline"]);
    for part in ["`vfs_write+`", "column 11"] {
        assert!(message.contains(part), "{message}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_wrong_probe_of_many_is_named_by_its_index_and_field() {
    let running = Running::start().await;
    let mut probes = vec![address(0x10); 3];
    probes[1].kind = Some(Kind::Watchpoint(Watchpoint {
        length: 3,
        reads: false,
    }));
    let mut with_condition = vec![address(0x10); 2];
    let condition = Condition {
        operand: Some(Operand::Variable(9)),
        ..Condition::default()
    };
    with_condition[1].options = Some(ProbeOptions {
        conditions: vec![condition],
        ..ProbeOptions::default()
    });
    for (probes, field) in [
        (probes, "probes[1].watchpoint.length"),
        (with_condition, "probes[1].options.conditions[0].variable"),
    ] {
        let request = CreateVmRequest {
            kernel: "/nonexistent/vmlinuz".into(),
            probes,
            ..CreateVmRequest::default()
        };
        let error = running.client().await.create_vm(request).await.unwrap_err();
        let ClientError::InvalidArgument { fields, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fields, [field]);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_batch_of_ten_thousand_probes_with_long_names_fits_into_a_request() {
    let running = Running::start().await;
    let probes = (0..10_000)
        .map(|number| ProbeSpec {
            name: format!("{number:x>128}"),
            place: Some(Place::Symbol(SymbolPlace {
                symbol: "f".repeat(511),
                offset: u64::MAX,
                module: "m".repeat(55),
            })),
            ..ProbeSpec::default()
        })
        .collect();
    let client = running.client().await;
    let error = client.register_probes("a", probes).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
    running.stop().await;
}

#[tokio::test]
async fn health_says_serving() {
    let running = Running::start().await;
    let mut health = HealthClient::new(running.channel().await);
    for service in ["", "vmprobe.v1.VmService", "vmprobe.v1.ProbeService"] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    drop(health);
    running.stop().await;
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let running = Running::start().await;
    let mut reflection = ServerReflectionClient::new(running.channel().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("not a list of services");
    };
    let names: Vec<_> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    for name in ["Vm", "Console", "Host", "Probe", "Event", "Symbol"] {
        let name = format!("vmprobe.v1.{name}Service");
        assert!(names.contains(&name.as_str()), "{name} is not in {names:?}");
    }
    drop(reflection);
    running.stop().await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = Server::bind(loopback(0)).await.unwrap();
    let (_, port) = taken.endpoints()[0].rsplit_once(':').unwrap();
    let again = loopback(port.parse().unwrap());
    let listen = again.listen[0].clone();
    let error = Server::bind(again).await.unwrap_err();
    assert!(
        matches!(&error, BindError::InUse { address, .. } if *address == listen),
        "{error:?}"
    );
}

#[tokio::test]
async fn plain_text_is_for_the_loopback_interface_and_has_to_be_wanted() {
    let everywhere = ListenAddress::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let here = loopback(0).listen.remove(0);
    for (listen, plain_text) in [(everywhere, true), (here, false)] {
        let options = ServeOptions {
            plain_text,
            ..ServeOptions::new(listen, Settings::default(), program())
        };
        let refused = Server::bind(options).await;
        assert!(matches!(refused, Err(BindError::NoTls(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_page_is_asked_for_by_the_token_of_the_one_before() {
    let running = Running::start().await;
    let mut vms = VmServiceClient::new(running.channel().await);
    let mut page = async |page_token: &str| {
        let request = ListVmsRequest {
            page_size: 1,
            page_token: page_token.to_owned(),
        };
        vms.list_vms(request).await
    };
    let first = page("").await.unwrap().into_inner();
    assert!(first.vms.is_empty() && first.next_page_token.is_empty());
    let error = ClientError::from(page("made-up").await.unwrap_err());
    let ClientError::InvalidArgument { fields, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(fields, ["page_token"]);
    running.stop().await;
}

#[tokio::test]
async fn a_client_that_stays_connected_does_not_hold_the_server_s_end_up() {
    let running = Running::start().await;
    let client = running.client().await;
    client.list_vms().await.unwrap();
    running.stop().await;
    let error = client.list_vms().await.unwrap_err();
    assert!(matches!(error, ClientError::Disconnected(_)), "{error:?}");
}
