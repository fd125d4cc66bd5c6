//! The listening socket and what is on it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Router;
use tower_layer::{Identity, Stack};
use vmprobe_proto::v1;
use vmprobe_proto::v1::console_service_server::ConsoleServiceServer;
use vmprobe_proto::v1::debug_service_server::DebugServiceServer;
use vmprobe_proto::v1::event_service_server::EventServiceServer;
use vmprobe_proto::v1::hit_service_server::HitServiceServer;
use vmprobe_proto::v1::host_service_server::HostServiceServer;
use vmprobe_proto::v1::image_service_server::ImageServiceServer;
use vmprobe_proto::v1::probe_service_server::ProbeServiceServer;
use vmprobe_proto::v1::session_service_server::SessionServiceServer;
use vmprobe_proto::v1::symbol_service_server::SymbolServiceServer;
use vmprobe_proto::v1::vm_service_server::VmServiceServer;

use super::address::ListenAddress;
use super::admission::Admission;
use super::connection::{self, Listener};
use super::host::Host;
use super::images::Images;
use super::process::{VmProcess, VmProgram};
use super::relay::Relay;
use super::tls::{TlsError, TlsFiles};
use super::unix_socket::UnixSocket;
use super::vms::Vms;
use crate::access::{AuditError, AuditLog, Authorize, Clients, ClientsError, Reloaded};
use crate::images::{ImageStore, OpenError};
use crate::limits;
use crate::services::{self, Consoles, Debuggers, Events, Hits, Probes, Sessions, Symbols};
use crate::settings::Settings;

/// How long clients may take to read the ends of their streams when the server ends.
const DRAIN: Duration = Duration::from_secs(2);

/// Permissions of a socket that only its owner may write to.
pub const PRIVATE: u32 = 0o600;

/// A client that answers no ping for so long has gone; its subscriptions end.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Where to listen, whom to let in, and what to give.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The addresses.
    pub listen: Vec<ListenAddress>,
    /// Permissions of the Unix sockets among them: who may write to one may do all.
    pub socket_mode: u32,
    /// What is shown to clients that come by TCP.
    pub tls: Option<TlsFiles>,
    /// The list of these clients.
    pub clients: Option<PathBuf>,
    /// Takes a line for each call that changes something.
    pub audit_log: Option<PathBuf>,
    /// Whether clients may come by TCP in plain text, to the loopback interface: any process of the host may do all
    /// then.
    pub plain_text: bool,
    /// What holds for all VMs.
    pub settings: Settings,
    /// What runs the VMs.
    pub program: VmProgram,
}

impl ServeOptions {
    /// Those of a server on one address, in plain text if that is one of TCP.
    pub fn new(listen: ListenAddress, settings: Settings, program: VmProgram) -> Self {
        Self {
            listen: vec![listen],
            socket_mode: PRIVATE,
            tls: None,
            clients: None,
            audit_log: None,
            plain_text: true,
            settings,
            program,
        }
    }
}

/// Why the server can't listen.
#[derive(Debug, Error)]
pub enum BindError {
    /// Whoever reaches the address could do all.
    #[error(
        "{0} is for those who come by TLS: give the server a certificate (--tls-cert, --tls-key) and a list of clients \
         (--clients), or listen on a Unix socket; --plain-text lets any process of this host do all by an address of the \
         loopback interface"
    )]
    NoTls(SocketAddr),
    /// Nobody could come by TLS.
    #[error("TLS takes a list of clients (--clients), which says who may do what")]
    NoClients,
    /// Another program listens there.
    #[error("{0} is in use: stop what listens there, or choose another address with --listen")]
    InUse(ListenAddress),
    /// The operating system refuses.
    #[error("can't listen on {address} ({cause}): choose another address with --listen")]
    Refused {
        /// The address.
        address: ListenAddress,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// What clients may name files below isn't a folder.
    #[error("{folder} isn't a folder that clients can name files below: {cause}")]
    Files {
        /// What isn't one.
        folder: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The folder of images can't be used.
    #[error(transparent)]
    Images(#[from] OpenError),
    /// A certificate can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The list of clients can't be used.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// The audit log can't be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

/// Why the server stopped serving.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The descriptor set doesn't fit the reflection service: a bug.
    #[error("the server's description of itself is broken: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("the gRPC transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    endpoints: Vec<String>,
    authorize: Authorize,
    vms: Arc<Vms>,
}

impl Server {
    /// Takes the addresses; from here on clients can connect, and wait.
    ///
    /// # Errors
    /// See [`BindError`].
    pub async fn bind(mut options: ServeOptions) -> Result<Self, BindError> {
        let folders = std::mem::take(&mut options.settings.files).found();
        options.settings.files =
            folders.map_err(|(folder, cause)| BindError::Files { folder, cause })?;
        let images = options.settings.images.as_deref();
        let images = images.map(|folder| ImageStore::open(folder, &options.settings.limits));
        let images = images.transpose()?;
        let tls = match &options.tls {
            Some(files) => Some(Arc::new(files.load()?)),
            None => None,
        };
        if tls.is_some() && options.clients.is_none() {
            return Err(BindError::NoClients);
        }
        let clients = options.clients.map(|file| {
            let files = vec![file.clone()];
            Reloaded::new(files, move || Clients::read(&file))
        });
        let audit = options.audit_log.as_deref().map(AuditLog::open);
        let authorize = Authorize::new(clients.transpose()?, audit.transpose()?);
        let (mut listeners, mut endpoints) = (Vec::new(), Vec::new());
        for address in options.listen {
            let refused = |cause: io::Error| match cause.kind() {
                ErrorKind::AddrInUse => BindError::InUse(address.clone()),
                _ => BindError::Refused {
                    address: address.clone(),
                    cause,
                },
            };
            let (listener, endpoint) = match &address {
                ListenAddress::Unix(path) => {
                    let socket = UnixSocket::bind(path, options.socket_mode).map_err(refused)?;
                    (Listener::Unix(socket), address.to_string())
                }
                ListenAddress::Tcp(tcp) => {
                    let is_plain = tls.is_none();
                    if is_plain && !(options.plain_text && tcp.ip().is_loopback()) {
                        return Err(BindError::NoTls(*tcp));
                    }
                    let listener = TcpListener::bind(tcp).await.map_err(refused)?;
                    let address = listener.local_addr().map_err(refused)?;
                    match &tls {
                        Some(tls) => {
                            let listener = Listener::Tls(listener, Arc::clone(tls));
                            (listener, format!("https://{address}"))
                        }
                        None => (Listener::PlainText(listener), format!("http://{address}")),
                    }
                }
            };
            listeners.push(listener);
            endpoints.push(endpoint);
        }
        Ok(Self {
            listeners,
            endpoints,
            authorize,
            vms: Arc::new(Vms::new(options.settings, options.program, images)),
        })
    }

    /// The addresses as clients take them, with the ports that were taken.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Answers calls until `end` completes; then takes all probes out of the guests, kills them, ends all streams and
    /// returns.
    ///
    /// # Errors
    /// [`ServeError`] when the transport fails.
    pub async fn serve(self, end: impl Future<Output = ()>) -> Result<(), ServeError> {
        let vms = Arc::clone(&self.vms);
        let router = router(&vms, self.authorize).await?;
        let (drain, drained) = oneshot::channel::<()>();
        let (_accepting, connections) = connection::incoming(self.listeners);
        let incoming = ReceiverStream::new(connections);
        let serving = router.serve_with_incoming_shutdown(incoming, async {
            // Dropped unsent when this future goes first.
            let _ = drained.await;
        });
        tokio::pin!(serving);
        tokio::select! {
            served = &mut serving => return Ok(served?),
            () = end => {}
        }
        let processes = vms.close();
        let mut killed = JoinSet::new();
        for process in processes.clone() {
            killed.spawn(async move {
                process.remove_probes().await;
                process.kill_guest().await;
            });
        }
        killed.join_all().await;
        // Fails when serving is over already.
        let _ = drain.send(());
        // What a client doesn't read by then, it has lost.
        tokio::time::timeout(DRAIN, serving)
            .await
            .unwrap_or(Ok(()))?;
        vms.forget();
        // Each ends with the way to it.
        let ended: Vec<_> = processes.into_iter().map(VmProcess::end).collect();
        for ended in ended {
            ended.await;
        }
        Ok(())
    }
}

type Layers = Stack<Relay, Stack<Admission, Stack<Authorize, Identity>>>;

async fn router(vms: &Arc<Vms>, authorize: Authorize) -> Result<Router<Layers>, ServeError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter
        .set_serving::<VmServiceServer<services::Vms>>()
        .await;
    reporter.set_serving::<ProbeServiceServer<Probes>>().await;
    reporter.set_serving::<EventServiceServer<Events>>().await;
    reporter.set_serving::<HitServiceServer<Hits>>().await;
    reporter
        .set_serving::<DebugServiceServer<Debuggers>>()
        .await;
    reporter
        .set_serving::<SessionServiceServer<Sessions>>()
        .await;
    reporter.set_serving::<SymbolServiceServer<Symbols>>().await;
    reporter
        .set_serving::<ConsoleServiceServer<Consoles>>()
        .await;
    reporter.set_serving::<HostServiceServer<Host>>().await;
    reporter.set_serving::<ImageServiceServer<Images>>().await;
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let images = Images {
        store: vms.images().cloned(),
        patience: Duration::from_secs(vms.settings().limits.upload_seconds),
    };
    Ok(tonic::transport::Server::builder()
        .initial_stream_window_size(limits::CLIENT_WINDOW)
        .initial_connection_window_size(limits::CLIENT_CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(Some(limits::STREAMS_A_CONNECTION))
        .layer(authorize)
        .layer(Admission::new(&vms.settings().limits))
        // The services of VMs are behind it.
        .layer(Relay::new(Arc::clone(vms)))
        .add_service(health)
        .add_service(describe().build_v1()?)
        // The only one that Python's grpcio-reflection and older tools ask for.
        .add_service(describe().build_v1alpha()?)
        .add_service(HostServiceServer::new(Host::default()))
        .add_service(ImageServiceServer::new(images)))
}
