//! A server that keeps to the contract and has no guest: each probe has one made-up event once its
//! VM is started.

pub mod command;
mod events;
mod probes;
mod session;
mod symbols;
mod vms;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};
use vmprobe_client::spec;
use vmprobe_client::v1::event_service_server::{EventService, EventServiceServer};
use vmprobe_client::v1::probe_service_server::{ProbeService, ProbeServiceServer};
use vmprobe_client::v1::session_service_server::{SessionService, SessionServiceServer};
use vmprobe_client::v1::symbol_service_server::{SymbolService, SymbolServiceServer};
use vmprobe_client::v1::update_probes_request::Change;
use vmprobe_client::v1::vm_service_server::{VmService, VmServiceServer};
use vmprobe_client::v1::{event::Detail, stream_events_response::Message, *};

/// Hertz of its guests' TSC.
const TSC_HZ: u64 = 1_000_000_000;

/// Items of its pages, for any size that a client asks for.
const PAGE: usize = 2;

/// What the kernel of its guests has: name, address.
const SYMBOLS: [(&str, u64); 10] = [
    ("start_kernel", 0x1000),
    ("mem_init", 0x2000),
    ("do_one_initcall", 0x3000),
    ("free_initmem", 0x4000),
    ("kernel_execve", 0x5000),
    ("vfs_read", 0x6000),
    ("vfs_write", 0x6800),
    ("acpi_init", 0x7000),
    ("jiffies", 0x8000),
    ("__initcall__kmod_acpi__431_1452_acpi_init4", 0x9000),
];

#[derive(Default)]
struct State {
    vm: Option<Vm>,
    probes: Vec<Probe>,
    disarmed: bool,
    optimization_off: bool,
    /// Calls, in their order, for tests that check what the client did.
    calls: Vec<&'static str>,
    ending: Option<Ending>,
}

/// The server; ends with the test's runtime.
#[derive(Clone, Default)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    /// Starts it on a port of its own. Returns it with its address.
    pub async fn start() -> (Self, String) {
        let fake = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = tonic::transport::Server::builder()
            .add_service(VmServiceServer::new(fake.clone()))
            .add_service(ProbeServiceServer::new(fake.clone()))
            .add_service(EventServiceServer::new(fake.clone()))
            .add_service(SessionServiceServer::new(fake.clone()))
            .add_service(SymbolServiceServer::new(fake.clone()));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        (fake, address)
    }

    /// Starts one with a VM called `guest`.
    pub async fn with_guest() -> (Self, String) {
        let (fake, address) = Self::start().await;
        fake.state().vm = Some(Vm {
            name: "guest".into(),
            ..Default::default()
        });
        (fake, address)
    }

    /// Returns the calls it has had so far.
    pub fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn called(&self, name: &'static str) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.calls.push(name);
        state
    }

    fn set_vm_state(&self, to: VmState, call: &'static str) -> Option<Vm> {
        let mut state = self.called(call);
        if let Some(vm) = &mut state.vm {
            vm.set_state(to);
        }
        self.changed.notify_waiters();
        state.vm.clone()
    }
}

/// Returns what follows the token in a list, at most [`PAGE`] items, and the token of the rest.
fn page<T: Clone>(all: &[T], token: &str) -> (Vec<T>, String) {
    let start = token.parse().unwrap_or(0);
    let end = all.len().min(start + PAGE);
    let next = (end < all.len()).then(|| end.to_string());
    (all[start..end].to_vec(), next.unwrap_or_default())
}
