//! The server: its addresses and its services.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
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

use super::admission::Admission;
use super::bind::{self, BindError, Listening, Purpose};
use super::cancellation::Cancellation;
use super::connection::{self, ConnectionLimit};
use super::counters::Counters;
use super::deadline::Deadlines;
use super::declared;
use super::drain::{Patience, drain};
use super::host::Host;
use super::images::Images;
use super::measure::Measure;
use super::options::ServeOptions;
use super::process::VmProcess;
use super::relay::Relay;
use super::sent::{Counts, Signal};
use super::telemetry::{Telemetry, TelemetryError, TelemetryOptions};
use super::vms::Vms;
use super::watch::Watch;
use crate::access::{AuditLog, Authorize};
use crate::call_layer::CallLayer;
use crate::images::ImageStore;
use crate::limits;
use crate::services::{self, Consoles, Debuggers, Events, Hits, Probes, Sessions, Symbols};

/// How long clients may take to read the ends of their streams when the server ends. The service manager waits for
/// longer (deploy/systemd/vmprobed.service).
const DRAIN: Patience = Patience {
    next: Duration::from_secs(2),
    all: Duration::from_secs(20),
};

/// A client that answers no ping for this long counts as gone, and its subscriptions end.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Why the server stopped serving.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The descriptor set doesn't fit the reflection service: a bug.
    #[error("the server's description of itself is broken: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("the gRPC transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// Metrics and logs can't be sent.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    calls: Listening,
    metrics: Listening,
    metrics_probes: u32,
    telemetry: TelemetryOptions,
    authorize: Authorize,
    /// The VMs that are made first.
    declared: Vec<v1::CreateVmRequest>,
    vms: Arc<Vms>,
}

impl Server {
    /// Binds the addresses. From here on clients can connect, but have to wait.
    ///
    /// # Errors
    /// See [`BindError`].
    pub async fn bind(mut options: ServeOptions) -> Result<Self, BindError> {
        options.settings.files = bind::folders(std::mem::take(&mut options.settings.files))?;
        let images = options.settings.images.as_deref();
        let images = images.map(|folder| ImageStore::open(folder, &options.settings.limits));
        let images = images.transpose()?;
        let declared = bind::declared(&options)?;
        let clients = bind::clients(&options)?;
        let records = options.settings.records.clone();
        let audit = AuditLog::new(options.audit_log.as_deref(), records)?;
        let authorize = Authorize::new(clients, audit);
        bind::telemetry(&options)?;
        let calls = bind::listen(&options, Purpose::Calls).await?;
        let metrics = bind::listen(&options, Purpose::Metrics).await?;
        Ok(Self {
            calls,
            metrics,
            metrics_probes: options.metrics_probes,
            telemetry: options.telemetry,
            authorize,
            declared,
            vms: Arc::new(Vms::new(options.settings, options.program, images)),
        })
    }

    /// Checks all that can be known before the server listens. Makes and changes nothing.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn check(options: &ServeOptions) -> Result<(), BindError> {
        bind::check(options)
    }

    /// The addresses in the form that clients accept, with the actual ports.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.calls.endpoints
    }

    /// The addresses of metrics and the status page, in the same form.
    #[must_use]
    pub fn metrics_endpoints(&self) -> &[String] {
        &self.metrics.endpoints
    }

    /// Answers calls until `end` completes. Then removes all probes from the guests, kills the guests, ends all streams
    /// and returns.
    ///
    /// # Errors
    /// [`ServeError`] when the transport fails.
    pub async fn serve(self, end: impl Future<Output = ()>) -> Result<(), ServeError> {
        let vms = Arc::clone(&self.vms);
        let counters = Counters::new();
        let router = router(&vms, self.authorize.clone(), &counters).await?;
        let (close, closed) = oneshot::channel::<()>();
        let (_accepting, connections) =
            connection::incoming(self.calls.listeners, &counters.connections("grpc"));
        let sends_metrics = self.telemetry.sends(Signal::Metrics);
        let sent = Counts::new(sends_metrics, vms.settings().records.clone());
        let watch = Watch::new(
            Arc::clone(&vms),
            self.authorize,
            counters,
            Arc::clone(&sent),
            self.metrics_probes,
        );
        let address = self.calls.endpoints.first().map_or("", String::as_str);
        let mut telemetry = Telemetry::start(&self.telemetry, address, &watch, &sent)?;
        let mut watched = watch.serve(self.metrics.listeners);
        declared::make(&vms, self.declared);
        let limit = ConnectionLimit::new(self.vms.settings().limits.connections);
        let written = limit.written().clone();
        let incoming = ReceiverStream::new(connections).filter_map(move |next| limit.admit(next));
        let serving = router.serve_with_incoming_shutdown(incoming, async {
            // `close` is dropped without a message if `serve` is dropped first.
            let _ = closed.await;
        });
        tokio::pin!(serving);
        tokio::select! {
            served = &mut serving => {
                telemetry.end().await;
                return Ok(served?);
            }
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
        // This fails if serving is over already.
        let _ = close.send(());
        // What a client hasn't read by then is lost to it.
        drain(serving, DRAIN, || written.bytes()).await?;
        telemetry.end_metrics().await;
        // A request that looks at VMs keeps their processes alive.
        watched.shutdown().await;
        vms.forget();
        // Each process ends when the last reference to it is dropped.
        let ended: Vec<_> = processes.into_iter().map(VmProcess::end).collect();
        for ended in ended {
            ended.await;
        }
        telemetry.end().await;
        Ok(())
    }
}

/// The last layer of this type is the outermost.
type Layers = Stack<
    CallLayer<Relay>,
    Stack<
        CallLayer<Admission>,
        Stack<
            CallLayer<Authorize>,
            Stack<
                CallLayer<Deadlines>,
                Stack<CallLayer<Measure>, Stack<CallLayer<Cancellation>, Identity>>,
            >,
        >,
    >,
>;

async fn router(
    vms: &Arc<Vms>,
    authorize: Authorize,
    counters: &Arc<Counters>,
) -> Result<Router<Layers>, ServeError> {
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
            // The types in the details of a refusal.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
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
        .layer(CallLayer(Cancellation))
        .layer(CallLayer(Measure::new(Arc::clone(counters))))
        .layer(CallLayer(Deadlines))
        .layer(CallLayer(authorize))
        .layer(CallLayer(Admission::new(&vms.settings().limits)))
        // The services of VMs are behind this layer.
        .layer(CallLayer(Relay::new(Arc::clone(vms))))
        .add_service(health)
        .add_service(describe().build_v1()?)
        // Python's grpcio-reflection and older tools ask only for this one.
        .add_service(describe().build_v1alpha()?)
        .add_service(HostServiceServer::new(Host::default()))
        .add_service(ImageServiceServer::new(images)))
}
