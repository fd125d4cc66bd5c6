//! Metrics and the status page over HTTP, as far as they need no guest.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed helper fails its test"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use vmprobe_client::Client;
use vmprobe_client::v1::CreateVmRequest;
use vmprobe_server::{
    BindError, ListenAddress, ServeError, ServeOptions, Server, Settings, TlsFiles, VmProgram,
};

/// The SHA-256 of `test`.
const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server on a socket, and its address of metrics.
struct Running {
    _folder: TempDir,
    socket: String,
    metrics: String,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

fn any_port() -> ListenAddress {
    ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn options(folder: &Path, metrics: ListenAddress) -> ServeOptions {
    let program = VmProgram::Process(env!("CARGO_BIN_EXE_vmprobed").into());
    let listen = ListenAddress::Unix(folder.join("a.sock"));
    ServeOptions {
        metrics: vec![metrics],
        ..ServeOptions::new(listen, Settings::default(), program)
    }
}

impl Running {
    async fn start(
        metrics: impl FnOnce(&Path) -> ListenAddress,
        change: impl FnOnce(&Path, &mut ServeOptions),
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let mut options = options(folder.path(), metrics(folder.path()));
        change(folder.path(), &mut options);
        let server = Server::bind(options).await.unwrap();
        let socket = server.endpoints()[0].clone();
        let metrics = server.metrics_endpoints()[0].clone();
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.serve(async {
            let _ = ended.await;
        }));
        Self {
            _folder: folder,
            socket,
            metrics,
            end,
            serving,
        }
    }

    async fn plain() -> Self {
        Self::start(|_| any_port(), |_, _| {}).await
    }

    fn address(&self) -> &str {
        self.metrics.split_once("://").unwrap().1
    }

    /// Sends a request with these headers, by TCP in plain text, and returns the answer.
    async fn ask(&self, line: &str, headers: &str) -> Answer {
        let stream = TcpStream::connect(self.address()).await.unwrap();
        let headers = match headers.contains("Host:") {
            true => headers.to_owned(),
            false => format!("Host: {}\r\n{headers}", self.address()),
        };
        ask(stream, line, &headers).await
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.serving.await.unwrap().unwrap();
    }
}

#[derive(Debug)]
struct Answer {
    code: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        found.next().map_or("", |(_, value)| value)
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, line: &str, headers: &str) -> Answer {
    let request = format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let code = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    });
    Answer {
        code: code.parse().unwrap(),
        headers: headers.collect(),
        body: body.to_owned(),
    }
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let running = Running::plain().await;
    let client = Client::connect(&running.socket).await.unwrap();
    client.get_vm("nobody").await.unwrap_err();

    let accept = format!("Accept: {OPENMETRICS};q=0.9,text/plain;q=0.5\r\n");
    let answer = running.ask("GET /metrics", &accept).await;
    assert_eq!(answer.code, 200);
    assert_eq!(answer.header("content-type"), OPENMETRICS);
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    for line in [
        "# TYPE vmprobe_calls counter\n",
        "vmprobe_calls_total{method=\"VmService/GetVm\",code=\"NOT_FOUND\"} 1\n",
        "vmprobe_connections{protocol=\"grpc\",transport=\"unix\"} 1\n",
        "vmprobe_vms 0.0\n",
        "process_open_fds ",
        "process_start_time_seconds ",
    ] {
        assert!(answer.body.contains(line), "{line}{}", answer.body);
    }
    let plain = running.ask("GET /metrics", "").await;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(plain.header("content-type"), kind);
    assert!(plain.body.contains("# TYPE vmprobe_calls_total counter\n"));
    assert!(!plain.body.contains("# EOF"));
    running.stop().await;
}

#[tokio::test]
async fn only_what_there_is_is_answered_and_nothing_is_changed() {
    let running = Running::plain().await;
    let health = running.ask("GET /healthz", "").await;
    assert_eq!((health.code, health.body.as_str()), (200, "ok\n"));
    let page = running.ask("GET /", "").await;
    assert_eq!(page.code, 200);
    assert!(page.body.contains("<title>vmprobe</title>"));
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    let head = running.ask("HEAD /", "").await;
    assert_eq!((head.code, head.body.as_str()), (200, ""));
    let status = running.ask("GET /api/status?vm=nobody", "").await;
    assert_eq!(status.header("content-type"), "application/json");
    let status: serde_json::Value = serde_json::from_str(&status.body).unwrap();
    assert_eq!(status["vms"], serde_json::json!([]));
    assert!(status.get("vm").is_none());

    assert_eq!(running.ask("GET /etc/passwd", "").await.code, 404);
    let post = running.ask("POST /metrics", "Content-Length: 0\r\n").await;
    assert_eq!((post.code, post.header("allow")), (405, "GET, HEAD"));
    let large = format!("X: {}\r\n", "x".repeat(64 << 10));
    assert_eq!(running.ask("GET /metrics", &large).await.code, 431);
    // The page of a site whose name leads to this host.
    let rebound = running.ask("GET /api/status", "Host: rebound.example\r\n");
    assert_eq!(rebound.await.code, 421);
    running.stop().await;
}

#[tokio::test]
async fn metrics_are_told_on_a_unix_socket() {
    let socket = |folder: &Path| ListenAddress::Unix(folder.join("metrics.sock"));
    let running = Running::start(socket, |_, _| {}).await;
    let path = running.metrics.strip_prefix("unix:").unwrap();
    let stream = UnixStream::connect(path).await.unwrap();
    let answer = ask(stream, "GET /metrics", "Host: any.name\r\n").await;
    assert_eq!(answer.code, 200);
    running.stop().await;
}

/// A server whose metrics need TLS, for clients with tokens.
struct Secured {
    running: Running,
    connector: TlsConnector,
}

impl Secured {
    async fn start(clients: &str) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let pem = cert.pem();
        let running = Running::start(
            |_| any_port(),
            |folder, options| {
                let write = |name: &str, text: &str| -> PathBuf {
                    fs::write(folder.join(name), text).unwrap();
                    folder.join(name)
                };
                options.tls = Some(TlsFiles {
                    certificate: write("server.pem", &pem),
                    key: write("server.key", &signing_key.serialize_pem()),
                    client_ca: None,
                });
                options.clients = Some(write("clients.toml", clients));
                options.plain_text = false;
            },
        )
        .await;
        let mut roots = RootCertStore::empty();
        let der = CertificateDer::from_pem_slice(pem.as_bytes());
        roots.add(der.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        Self { running, connector }
    }

    async fn get(&self, path: &str, token: &str) -> Answer {
        let stream = TcpStream::connect(self.running.address()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = self.connector.connect(name, stream).await.unwrap();
        let token = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let headers = format!("Host: localhost\r\n{token}");
        ask(stream, &format!("GET {path}"), &headers).await
    }
}

fn with_token(vms: &str) -> String {
    format!("[[client]]\nname = 'a'\ntoken-sha256 = '{TEST}'\nrole = 'observe'\nvms = {vms}\n")
}

#[tokio::test]
async fn by_tls_only_clients_of_the_list_are_told_anything() {
    let secured = Secured::start(&with_token("['*']")).await;
    for path in ["/", "/metrics", "/api/status"] {
        for token in ["", "other"] {
            let refused = secured.get(path, token).await;
            assert_eq!(refused.code, 401, "{path}");
            assert_eq!(refused.header("www-authenticate"), "Bearer");
        }
        assert_eq!(secured.get(path, "test").await.code, 200, "{path}");
    }
    assert_eq!(secured.get("/healthz", "").await.code, 200);
    secured.running.stop().await;
}

#[tokio::test]
async fn clients_are_told_of_their_vms_and_of_no_others() {
    if !Path::new("/dev/kvm").exists() {
        println!("skipped: there is no /dev/kvm");
        return;
    }
    let secured = Secured::start(&with_token("['mine-*']")).await;
    let folder = TempDir::new().unwrap();
    let kernel = folder.path().join("kernel");
    fs::write(&kernel, tiny_kernel::build(|a, _| a.hlt()).unwrap()).unwrap();
    let owner = Client::connect(&secured.running.socket).await.unwrap();
    for name in ["mine-1", "theirs"] {
        let request = CreateVmRequest {
            name: name.into(),
            kernel: kernel.display().to_string(),
            memory_mib: 64,
            hold: true,
            ..CreateVmRequest::default()
        };
        owner.create_vm(request).await.unwrap();
    }
    let metrics = secured.get("/metrics", "test").await.body;
    assert!(
        metrics.contains("vmprobe_vm_up{vm=\"mine-1\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("vmprobe_vms 1.0\n"), "{metrics}");
    let status = secured.get("/api/status?vm=theirs", "test").await.body;
    for told in [&metrics, &status] {
        assert!(!told.contains("theirs"), "{told}");
    }
    let status = secured.get("/api/status?vm=mine-1", "test").await.body;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["vm"]["name"], "mine-1");
    assert_eq!(status["vms"][0]["state"], "created");
    secured.running.stop().await;
}

#[tokio::test]
async fn addresses_of_metrics_are_refused_as_those_of_calls_are() {
    let folder = TempDir::new().unwrap();
    let bind = async |metrics: SocketAddr, plain_text: bool| {
        let options = ServeOptions {
            plain_text,
            ..options(folder.path(), ListenAddress::Tcp(metrics))
        };
        Server::bind(options).await.map(drop)
    };
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let others = SocketAddr::from(([0, 0, 0, 0], 0));
    for (address, plain_text) in [(loopback, false), (others, true), (others, false)] {
        let refused = bind(address, plain_text).await.unwrap_err();
        assert!(
            matches!(&refused, BindError::NoTls(it) if *it == address),
            "{refused}"
        );
    }
    let taken = std::net::TcpListener::bind(loopback).unwrap();
    let refused = bind(taken.local_addr().unwrap(), true).await.unwrap_err();
    let message = refused.to_string();
    assert!(matches!(refused, BindError::InUse { .. }), "{message}");
    assert!(
        message.contains("choose another address with --metrics"),
        "{message}"
    );
}
