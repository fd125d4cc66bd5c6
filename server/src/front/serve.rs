//! The listening socket and what is on it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
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
use vmprobe_proto::v1::probe_service_server::ProbeServiceServer;
use vmprobe_proto::v1::session_service_server::SessionServiceServer;
use vmprobe_proto::v1::symbol_service_server::SymbolServiceServer;
use vmprobe_proto::v1::vm_service_server::VmServiceServer;

use super::address::ListenAddress;
use super::admission::Admission;
use super::connection::{self, Listener};
use super::host::Host;
use super::process::{VmProcess, VmProgram};
use super::relay::Relay;
use super::tls::{TlsError, TlsFiles};
use super::unix_socket::UnixSocket;
use super::vms::Vms;
use crate::access::{AuditError, AuditLog, Authorize, Clients, ClientsError, Reloaded};
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

    /// Checks all that can be known before the server listens: that certificates, keys and the list of clients can be
    /// used, and that each address may be listened on. Nothing is made or changed.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn check(&self) -> Result<(), BindError> {
        let tls = self.load_tls()?;
        self.load_clients()?;
        for address in &self.listen {
            self.check_address(address, tls.is_some())?;
        }
        Ok(())
    }

    fn load_tls(&self) -> Result<Option<Reloaded<ServerConfig>>, BindError> {
        let tls = self.tls.as_ref().map(TlsFiles::load).transpose()?;
        match tls.is_some() && self.clients.is_none() {
            true => Err(BindError::NoClients),
            false => Ok(tls),
        }
    }

    fn load_clients(&self) -> Result<Option<Reloaded<Clients>>, ClientsError> {
        let clients = self.clients.clone().map(|file| {
            let files = vec![file.clone()];
            Reloaded::new(files, move || Clients::read(&file))
        });
        clients.transpose()
    }

    /// Plain text is only for the loopback interface, and only where the owner wants it.
    fn check_address(&self, address: &ListenAddress, has_tls: bool) -> Result<(), BindError> {
        match address {
            ListenAddress::Tcp(tcp) if !(has_tls || self.plain_text && tcp.ip().is_loopback()) => {
                Err(BindError::NoTls(*tcp))
            }
            _ => Ok(()),
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
    pub async fn bind(options: ServeOptions) -> Result<Self, BindError> {
        let tls = options.load_tls()?.map(Arc::new);
        let clients = options.load_clients()?;
        let audit = options.audit_log.as_deref().map(AuditLog::open);
        let authorize = Authorize::new(clients, audit.transpose()?);
        let (mut listeners, mut endpoints) = (Vec::new(), Vec::new());
        for address in &options.listen {
            options.check_address(address, tls.is_some())?;
            let refused = |cause: io::Error| match cause.kind() {
                ErrorKind::AddrInUse => BindError::InUse(address.clone()),
                _ => BindError::Refused {
                    address: address.clone(),
                    cause,
                },
            };
            let (listener, endpoint) = match address {
                ListenAddress::Unix(path) => {
                    let socket = UnixSocket::bind(path, options.socket_mode).map_err(refused)?;
                    (Listener::Unix(socket), address.to_string())
                }
                ListenAddress::Tcp(tcp) => {
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
            vms: Arc::new(Vms::new(options.settings, options.program)),
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
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(tonic::transport::Server::builder()
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
        .add_service(HostServiceServer::new(Host::default())))
}
