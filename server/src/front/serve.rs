//! The listening socket and what is on it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::transport::server::{Router, TcpIncoming};
use tower_layer::{Identity, Stack};
use vmprobe_proto::v1;
use vmprobe_proto::v1::console_service_server::ConsoleServiceServer;
use vmprobe_proto::v1::debug_service_server::DebugServiceServer;
use vmprobe_proto::v1::event_service_server::EventServiceServer;
use vmprobe_proto::v1::hit_service_server::HitServiceServer;
use vmprobe_proto::v1::host_service_server::HostServiceServer;
use vmprobe_proto::v1::probe_service_server::ProbeServiceServer;
use vmprobe_proto::v1::symbol_service_server::SymbolServiceServer;
use vmprobe_proto::v1::vm_service_server::VmServiceServer;

use super::admission::Admission;
use super::host::Host;
use super::process::{VmProcess, VmProgram};
use super::relay::Relay;
use super::vms::Vms;
use crate::limits;
use crate::services::{self, Consoles, Debuggers, Events, Hits, Probes, Symbols};
use crate::settings::Settings;

/// How long clients may take to read the ends of their streams when the server ends.
const DRAIN: Duration = Duration::from_secs(2);

/// A client that answers no ping for so long has gone; its subscriptions end.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Where to listen, and what to give.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The address; port 0 takes any free port.
    pub listen: SocketAddr,
    /// Listen on an address that other hosts reach, too. There is no authentication yet: whoever
    /// reaches the port controls the guests and reads any file that the server can open as a kernel.
    pub insecure_listen_anywhere: bool,
    /// What holds for all VMs.
    pub settings: Settings,
    /// What runs the VMs.
    pub program: VmProgram,
}

/// Why the server can't listen.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address isn't one of the loopback interface.
    #[error(
        "{0} can be reached from other hosts, and there is no authentication yet: listen on \
         127.0.0.1, or add --insecure-listen-anywhere on a network that you trust"
    )]
    NotLoopback(SocketAddr),
    /// Another program listens there.
    #[error("{0} is in use: stop what listens there, or choose another port with --listen")]
    InUse(SocketAddr),
    /// The operating system refuses.
    #[error("can't listen on {address} ({cause}): choose another address with --listen")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The operating system's reason.
        cause: io::Error,
    },
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
    listener: TcpListener,
    address: SocketAddr,
    vms: Arc<Vms>,
}

impl Server {
    /// Takes the address; from here on clients can connect, and wait.
    ///
    /// # Errors
    /// [`BindError`]: the address is in use, isn't this host's, or isn't a loopback address.
    pub async fn bind(options: ServeOptions) -> Result<Self, BindError> {
        let address = options.listen;
        if !address.ip().is_loopback() && !options.insecure_listen_anywhere {
            return Err(BindError::NotLoopback(address));
        }
        let refused = |cause: io::Error| match cause.kind() {
            ErrorKind::AddrInUse => BindError::InUse(address),
            _ => BindError::Refused { address, cause },
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self {
            listener,
            address,
            vms: Arc::new(Vms::new(options.settings, options.program)),
        })
    }

    /// The address, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers calls until `end` completes; then kills all guests, ends all streams and returns.
    ///
    /// # Errors
    /// [`ServeError`] when the transport fails.
    pub async fn serve(self, end: impl Future<Output = ()>) -> Result<(), ServeError> {
        let vms = Arc::clone(&self.vms);
        let router = router(&vms).await?;
        let (drain, drained) = oneshot::channel::<()>();
        let incoming = TcpIncoming::from(self.listener).with_nodelay(Some(true));
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
            killed.spawn(async move { process.kill_guest().await });
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

async fn router(
    vms: &Arc<Vms>,
) -> Result<Router<Stack<Relay, Stack<Admission, Identity>>>, ServeError> {
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
        .layer(Admission::new(&vms.settings().limits))
        // The services of VMs are behind it.
        .layer(Relay::new(Arc::clone(vms)))
        .add_service(health)
        .add_service(describe().build_v1()?)
        // The only one that Python's grpcio-reflection and older tools ask for.
        .add_service(describe().build_v1alpha()?)
        .add_service(HostServiceServer::new(Host::default())))
}
