//! Access by certificates, tokens and a socket: which clients are let in, and what each may do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use test_certificates::{Authority, Signed};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vmprobe_client::v1::{Action, CreateVmRequest, PauseGuest, ProbeSpec, action};
use vmprobe_client::{Client, ClientError, Credentials};
use vmprobe_server::{
    ListenAddress, ServeError, ServeOptions, Server, Settings, TlsFiles, VmProgram,
};

/// The SHA-256 of `test`.
const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// A server on a socket and by TLS, in a folder with its files.
struct Running {
    folder: TempDir,
    authority: Authority,
    socket: String,
    endpoint: String,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

fn write(file: &Path, text: &str) -> PathBuf {
    fs::write(file, text).unwrap();
    file.to_owned()
}

impl Running {
    async fn start(clients: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let authority = Authority::new().unwrap();
        let server = authority.server().unwrap();
        let options = ServeOptions {
            listen: vec![
                ListenAddress::Unix(at("a.sock")),
                ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))),
            ],
            tls: Some(TlsFiles {
                certificate: write(&at("server.pem"), &server.certificate),
                key: write(&at("server.key"), &server.key),
                client_ca: Some(write(&at("ca.pem"), &authority.pem)),
            }),
            clients: Some(write(&at("clients.toml"), clients)),
            audit_log: Some(at("audit.jsonl")),
            plain_text: false,
            ..ServeOptions::new(
                ListenAddress::Unix(PathBuf::new()),
                Settings::default(),
                VmProgram::Process(env!("CARGO_BIN_EXE_vmprobed").into()),
            )
        };
        let server = Server::bind(options).await.unwrap();
        let [socket, endpoint] = server.endpoints() else {
            panic!("{:?}", server.endpoints());
        };
        let (socket, endpoint) = (socket.clone(), endpoint.clone());
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.serve(async {
            let _ = ended.await;
        }));
        Self {
            folder,
            authority,
            socket,
            endpoint,
            end,
            serving,
        }
    }

    fn credentials(&self, signed: Option<Signed>, token: Option<&str>) -> Credentials {
        Credentials {
            ca: Some(self.authority.pem.clone().into_bytes()),
            identity: signed.map(|it| (it.certificate.into_bytes(), it.key.into_bytes())),
            token: token.map(str::to_owned),
        }
    }

    async fn with(
        &self,
        signed: Option<Signed>,
        token: Option<&str>,
    ) -> Result<Client, ClientError> {
        Client::connect_with(&self.endpoint, &self.credentials(signed, token)).await
    }

    async fn named(&self, name: &str) -> Client {
        self.with(Some(self.authority.client(name).unwrap()), None)
            .await
            .unwrap()
    }

    fn audited(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.folder.path().join("audit.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

fn client(name: &str, role: &str, vms: &str) -> String {
    format!("[[client]]\nname = '{name}'\ncertificate = '{name}'\nrole = '{role}'\nvms = {vms}\n")
}

fn denied<T: std::fmt::Debug>(result: Result<T, ClientError>, part: &str) {
    match result {
        Err(ClientError::PermissionDenied(message)) => {
            assert!(message.contains(part), "{message}");
        }
        other => panic!("{other:?} instead of {part}"),
    }
}

fn not_found<T: std::fmt::Debug>(result: &Result<T, ClientError>) {
    assert!(
        matches!(result, Err(ClientError::NotFound(_))),
        "{result:?}"
    );
}

#[tokio::test]
async fn each_role_may_do_what_it_says_and_to_its_vms_only() {
    let clients = [
        client("watcher", "observe", "['web-*']"),
        client("prober", "probe", "['web-*']"),
        client("boss", "control", "['web-*', 'db']"),
    ];
    let running = Running::start(&clients.concat()).await;
    let request = |name: &str| CreateVmRequest {
        name: name.to_owned(),
        kernel: "/nowhere/kernel".to_owned(),
        ..CreateVmRequest::default()
    };
    let probe = |acts: bool| ProbeSpec {
        actions: match acts {
            true => vec![Action {
                action: Some(action::Action::Pause(PauseGuest {})),
            }],
            false => Vec::new(),
        },
        ..ProbeSpec::default()
    };
    let watcher = running.named("watcher").await;
    assert!(watcher.list_vms().await.unwrap().is_empty());
    not_found(&watcher.get_vm("web-1").await);
    denied(
        watcher.get_vm("db").await,
        "may use VMs called web-*, and not `db`",
    );
    denied(
        watcher.register_probes("web-1", vec![probe(false)]).await,
        "takes the role `probe`",
    );
    denied(
        watcher.read_memory("web-1", 0, 0, 1).await,
        "`watcher` has `observe`",
    );
    denied(watcher.kill_vm("web-1").await, "takes the role `control`");

    let prober = running.named("prober").await;
    not_found(&prober.register_probes("web-1", vec![probe(false)]).await);
    denied(
        prober.register_probes("web-1", vec![probe(true)]).await,
        "a probe that does something to the guest takes the role `control`",
    );
    denied(prober.register_probes("db", vec![]).await, "not `db`");
    denied(
        prober.create_vm(request("web-1")).await,
        "takes the role `control`",
    );

    let boss = running.named("boss").await;
    denied(boss.create_vm(request("other")).await, "not `other`");
    denied(boss.create_vm(request("")).await, "not ``");
    denied(
        boss.create_vm(request("db")).await,
        "may name no files of its host",
    );
    not_found(&boss.register_probes("db", vec![probe(true)]).await);

    // A client on the socket may do everything.
    let owner = Client::connect(&running.socket).await.unwrap();
    let refused = owner.create_vm(request("other")).await;
    assert!(
        matches!(refused, Err(ClientError::InvalidArgument { .. })),
        "{refused:?}"
    );

    let audited = running.audited();
    let found: Vec<_> = audited
        .iter()
        .map(|line| {
            let text = |field: &str| line[field].as_str().unwrap_or("-").to_owned();
            let code = line["code"].as_i64().unwrap();
            (text("client"), text("call"), text("vm"), code)
        })
        .collect();
    let has = |client: &str, call: &str, vm: &str, code| {
        found.contains(&(client.to_owned(), call.to_owned(), vm.to_owned(), code))
    };
    assert!(has("watcher", "VmService/KillVm", "-", 7), "{found:?}");
    assert!(
        has("prober", "ProbeService/RegisterProbes", "web-1", 5),
        "{found:?}"
    );
    assert!(has("boss", "VmService/CreateVm", "db", 7), "{found:?}");
    assert!(
        found
            .iter()
            .any(|line| line.0.starts_with("the local user ") && line.2 == "other")
    );
    assert!(
        found.iter().all(|line| line.1 != "VmService/ListVms"),
        "{found:?}"
    );
    running.stop().await;
}

#[tokio::test]
async fn who_is_not_known_is_refused_and_told_why() {
    let token = format!("[[client]]\nname = 'ci'\ntoken-sha256 = '{TEST}'\nrole = 'observe'\n");
    let running = Running::start(&(client("alice", "observe", "['*']") + &token)).await;
    // Each of these clients gets in by TLS, or is refused.
    assert!(running.named("alice").await.list_vms().await.is_ok());
    let by_token = running.with(None, Some("test")).await.unwrap();
    assert!(by_token.list_vms().await.is_ok());
    denied(by_token.kill_vm("a").await, "client `ci` has `observe`");
    let stranger = running.named("mallory").await;
    denied(
        stranger.list_vms().await,
        "no client with a certificate of the name mallory",
    );
    for (token, part) in [
        (None, "wants to know who calls"),
        (Some("guess"), "no client with this token"),
    ] {
        let client = running.with(None, token).await.unwrap();
        match client.list_vms().await {
            Err(ClientError::Unauthenticated(message)) => {
                assert!(message.contains(part), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    let others = Authority::new().unwrap();
    for refused in [others.client("alice"), running.authority.expired("alice")] {
        let call = match running.with(Some(refused.unwrap()), None).await {
            Ok(client) => client.list_vms().await.map(drop),
            Err(error) => Err(error),
        };
        let is_broken = matches!(
            call,
            Err(ClientError::Disconnected(_)
                | ClientError::NoServer { .. }
                | ClientError::Other { .. })
        );
        assert!(is_broken, "{call:?}");
    }
    // This client doesn't accept a server whose certificate another authority has signed.
    let credentials = Credentials {
        ca: Some(others.pem.into_bytes()),
        ..Credentials::default()
    };
    let refused = Client::connect_with(&running.endpoint, &credentials).await;
    assert!(
        matches!(refused, Err(ClientError::NoServer { .. })),
        "{refused:?}"
    );
    // Plain text to a TLS address.
    let plain = running.endpoint.replace("https", "http");
    let refused = match Client::connect(&plain).await {
        Ok(client) => client.list_vms().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(refused.is_err());
    running.stop().await;
}

#[tokio::test]
async fn a_new_certificate_and_a_new_list_hold_without_a_restart() {
    let running = Running::start(&client("alice", "observe", "['*']")).await;
    let at = |name: &str| running.folder.path().join(name);
    let alice = running.named("alice").await;
    assert!(alice.list_vms().await.is_ok());
    // From now on another authority signs all certificates, and another client is let in.
    let next = Authority::new().unwrap();
    let server = next.server().unwrap();
    for (name, text) in [
        ("clients.toml", &client("bob", "observe", "['*']")),
        ("ca.pem", &next.pem),
        ("server.key", &server.key),
        ("server.pem", &server.certificate),
    ] {
        write(&at(name), text);
    }
    let credentials = Credentials {
        ca: Some(next.pem.clone().into_bytes()),
        identity: {
            let bob = next.client("bob").unwrap();
            Some((bob.certificate.into_bytes(), bob.key.into_bytes()))
        },
        token: None,
    };
    // Files are looked at again after a while.
    loop {
        let bob = Client::connect_with(&running.endpoint, &credentials).await;
        if let Ok(bob) = bob
            && bob.list_vms().await.is_ok()
        {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    denied(
        alice.list_vms().await,
        "no client with a certificate of the name alice",
    );
    // An invalid list changes nothing.
    write(&at("clients.toml"), "nonsense");
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let bob = Client::connect_with(&running.endpoint, &credentials)
        .await
        .unwrap();
    assert!(bob.list_vms().await.is_ok());
    running.stop().await;
}
