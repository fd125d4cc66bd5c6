//! Probes over the wire, on a VM that is held before its first instruction. This needs a KVM, but
//! not one that runs Linux.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed helper fails its test"
)]

mod actions;
mod jumps;
mod stats;
mod tiny;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tiny_kernel::{DATA, UPPER_HALF};
use tokio::sync::oneshot;
use vmprobe_client::v1::probe_spec::{Kind, Place};
use vmprobe_client::v1::{
    CreateVmRequest, Probe, ProbeSpec, ProbeState, ReturnProbe, Strategy, SymbolPlace, Watchpoint,
};
use vmprobe_client::{Client, ClientError};
use vmprobe_server::{ListenAddress, ServeOptions, Server, Settings, VmProgram};

const VM: &str = "a";

/// Runs a test with a held VM, unless there is no KVM.
async fn with_vm<F: Future<Output = ()>>(cmdline: &str, test: impl FnOnce(Client) -> F) {
    with_vm_and(cmdline, Settings::default(), test).await;
}

/// Does the same on a server with these settings.
async fn with_vm_and<F: Future<Output = ()>>(
    cmdline: &str,
    mut settings: Settings,
    test: impl FnOnce(Client) -> F,
) {
    if !std::path::Path::new("/dev/kvm").exists() {
        println!("skipped: there is no /dev/kvm");
        return;
    }
    let folder = TempDir::new().unwrap();
    let kernel = folder.path().join("kernel");
    fs::write(&kernel, tiny::image()).unwrap();
    let listen = ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let program = VmProgram::Process(env!("CARGO_BIN_EXE_vmprobed").into());
    settings.files.read = vec![folder.path().to_owned()];
    let options = ServeOptions::new(listen, settings, program);
    let server = Server::bind(options).await.unwrap();
    let endpoint = server.endpoints()[0].clone();
    let (end, ended) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async {
        let _ = ended.await;
    }));
    let client = Client::connect(&endpoint).await.unwrap();
    let request = CreateVmRequest {
        name: VM.into(),
        kernel: kernel.display().to_string(),
        cmdline: cmdline.into(),
        memory_mib: 64,
        vcpus: 2,
        hold: true,
        ..CreateVmRequest::default()
    };
    client.create_vm(request).await.unwrap();
    test(client).await;
    end.send(()).unwrap();
    serving.await.unwrap().unwrap();
}

fn on(symbol: &str, offset: u64) -> ProbeSpec {
    let place = SymbolPlace {
        symbol: symbol.into(),
        offset,
        module: String::new(),
    };
    ProbeSpec {
        place: Some(Place::Symbol(place)),
        ..ProbeSpec::default()
    }
}

fn watch(offset: u64) -> ProbeSpec {
    ProbeSpec {
        kind: Some(Kind::Watchpoint(Watchpoint {
            length: 8,
            reads: false,
        })),
        place: Some(Place::Address(UPPER_HALF + DATA + offset)),
        ..ProbeSpec::default()
    }
}

fn states(probes: &[Probe]) -> Vec<(&str, ProbeState)> {
    let states = probes.iter();
    states
        .map(|probe| (probe.name.as_str(), probe.state()))
        .collect()
}

async fn list(client: &Client) -> Vec<Probe> {
    client.list_probes(VM).await.unwrap()
}

#[tokio::test]
async fn probes_on_the_command_line_are_planted_before_the_guest_runs() {
    with_vm("vmprobe.probe=p:mine,first;second", async |client| {
        let probes = list(&client).await;
        let expected = [
            ("mine", ProbeState::Armed),
            ("second+0x0", ProbeState::Armed),
        ];
        assert_eq!(states(&probes), expected);
    })
    .await;
}

#[tokio::test]
async fn a_refused_probe_of_a_batch_is_named_by_its_index() {
    with_vm("", async |client| {
        let batch = vec![on("first", 0), on("second", 0), on("second", 1 << 20)];
        let error = client.register_probes(VM, batch).await.unwrap_err();
        let ClientError::InvalidArgument { fields, message } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fields, ["probes[2]"]);
        assert!(message.ends_with(" (probes[2])"), "{message}");

        let alone = vec![on("second", 1 << 20)];
        let error = client.register_probes(VM, alone).await.unwrap_err();
        assert!(!error.to_string().contains("probes["), "{error}");
        assert!(list(&client).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn probes_are_disabled_and_enabled_by_name_and_number_all_or_none() {
    with_vm("vmprobe.probe=first;second", async |client| {
        let [first, second] = ["first+0x0", "second+0x0"];
        let id = list(&client).await[1].id;
        let names = || vec![first.to_owned()];
        let batch = client.disable_probes(VM, vec![id], names()).await.unwrap();
        assert!(batch.stopped > Duration::ZERO);
        let disabled = [
            (first, ProbeState::Disabled),
            (second, ProbeState::Disabled),
        ];
        assert_eq!(states(&list(&client).await), disabled);

        let error = client
            .enable_probes(VM, vec![999], names())
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::NotFound(_)), "{error:?}");
        assert_eq!(states(&list(&client).await), disabled);

        client.enable_probes(VM, vec![], names()).await.unwrap();
        let one = [(first, ProbeState::Armed), (second, ProbeState::Disabled)];
        assert_eq!(states(&list(&client).await), one);
    })
    .await;
}

#[tokio::test]
async fn the_switch_for_all_leaves_each_probe_s_own_as_it_is() {
    with_vm("vmprobe.probe=first", async |client| {
        let disabled = ProbeSpec {
            enabled: Some(false),
            ..on("second", 0)
        };
        client.register_probes(VM, vec![disabled]).await.unwrap();
        let before = states_of(&client).await;
        assert!(client.disarm_probes(VM).await.unwrap() > Duration::ZERO);
        assert!(!client.probe_list(VM).await.unwrap().armed);
        assert_eq!(states_of(&client).await, before);
        client.arm_probes(VM).await.unwrap();
        assert!(client.probe_list(VM).await.unwrap().armed);
        assert_eq!(states_of(&client).await, before);
    })
    .await;
}

async fn states_of(client: &Client) -> Vec<(String, ProbeState)> {
    let probes = list(client).await;
    let states = states(&probes).into_iter();
    states
        .map(|(name, state)| (name.to_owned(), state))
        .collect()
}

#[tokio::test]
async fn a_fifth_watchpoint_is_refused_and_leaves_the_four() {
    with_vm("", async |client| {
        let four: Vec<_> = (0..4).map(|number| watch(8 * number)).collect();
        let probes = client.register_probes(VM, four).await.unwrap();
        assert!(
            probes
                .iter()
                .all(|probe| probe.strategy() == Strategy::Watch)
        );

        for fifth in [vec![watch(32)], vec![on("first", 0), watch(32)]] {
            let error = client.register_probes(VM, fifth).await.unwrap_err();
            assert!(
                matches!(error, ClientError::ResourceExhausted(_)),
                "{error:?}"
            );
        }
        assert_eq!(list(&client).await.len(), 4);

        // A disabled probe needs no debug register until it is enabled.
        let disabled = ProbeSpec {
            enabled: Some(false),
            ..watch(32)
        };
        let fifth = client.register_probes(VM, vec![disabled]).await.unwrap();
        let id = fifth[0].id;
        let error = client
            .enable_probes(VM, vec![id], vec![])
            .await
            .unwrap_err();
        assert!(
            matches!(error, ClientError::ResourceExhausted(_)),
            "{error:?}"
        );
        assert_eq!(list(&client).await[4].state(), ProbeState::Disabled);
        client
            .disable_probes(VM, vec![probes[0].id], vec![])
            .await
            .unwrap();
        client.enable_probes(VM, vec![id], vec![]).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn features_that_the_kernel_lacks_are_told_with_the_vm_and_in_refusals() {
    with_vm("", async |client| {
        let vm = client.get_vm(VM).await.unwrap();
        let arena = vm.arena.unwrap_or_default();
        assert!(!arena.available);
        assert!(arena.reason.contains("page table"), "{}", arena.reason);
        assert_eq!(vm.exits.unwrap().breakpoint, 0);
        let returning = ProbeSpec {
            kind: Some(Kind::Return(ReturnProbe::default())),
            ..on("first", 0)
        };
        let error = client
            .register_probes(VM, vec![returning])
            .await
            .unwrap_err();
        assert!(
            matches!(error, ClientError::FailedPrecondition(_)),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_batch_of_ten_thousand_probes_is_registered_listed_and_removed() {
    with_vm("", async |client| {
        let probes = (0..10_000)
            .map(|number| ProbeSpec {
                name: format!("probe-with-a-rather-long-name-{number}"),
                ..on("first", 0)
            })
            .collect();
        let batch = client.register_batch(VM, probes).await.unwrap();
        assert_eq!(batch.probes.len(), 10_000);
        assert_eq!(list(&client).await.len(), 10_000);
        let ids = batch.probes.iter().map(|probe| probe.id).collect();
        let removed = client.unregister_batch(VM, ids, vec![]).await.unwrap();
        assert_eq!(removed.probes.len(), 10_000);
        assert!(list(&client).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_kernel_that_patches_nothing_has_an_empty_blacklist() {
    with_vm("", async |client| {
        for pattern in ["", "first", "*"] {
            let mut entries = client.blacklist(VM, pattern).await.unwrap();
            assert_eq!(entries.next().await.unwrap(), None, "{pattern}");
        }
        for pattern in ["nosuch", "nosuch*", &"x".repeat(513)] {
            let refused = client.blacklist(VM, pattern).await;
            assert!(refused.is_err(), "{pattern}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_type_without_a_name_or_with_a_long_one_names_the_field() {
    with_vm("", |client| async move {
        for name in [String::new(), "x".repeat(513)] {
            for (error, field) in [
                (client.describe_type(VM, &name).await.unwrap_err(), "name"),
                (client.list_types(VM, &name).await.unwrap_err(), "pattern"),
            ] {
                let ClientError::InvalidArgument { fields, .. } = error else {
                    panic!("{error:?}")
                };
                assert_eq!(fields, [field]);
            }
        }
    })
    .await;
}
