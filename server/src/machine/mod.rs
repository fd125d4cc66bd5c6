//! One VM: the monitor that runs it, the engine that probes it, and the clients that watch it.

mod arena;
mod asked;
mod attend;
mod bell;
mod blacklist;
mod create;
mod debug;
mod dump;
mod inspect;
mod modules;
mod optimize;
mod optimizer_thread;
mod patterns;
mod permission;
mod probes;
mod rates;
mod read_rings;
mod reader_thread;
mod same_event;
mod sessions;
mod stats;
mod symbol_file;
mod symbols;
mod types;
mod watched;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use guest_state::TrapHandler;
use parking_lot::Mutex;
use probe_engine::engine::Engine;
use tokio::sync::watch;
use tonic::Status;
use vmm::{GuestRam, StartError, StoppedVm, Vm, VmConfig, VmState};
use vmprobe_proto::v1;

use crate::console::ConsoleReader;
use crate::convert;
use crate::fanout::Fanout;
use crate::resumable::ResumableStreams;
use crate::status::{self, Precondition};

use asked::AskedProbes;
pub use attend::{Attendance, Told};
pub use blacklist::BlacklistReader;
pub use debug::DebugSession;
pub use probes::Changed;

use optimizer_thread::OptimizerThread;
use reader_thread::ReaderThread;
use sessions::Sessions;
use watched::Watched;

/// A VM with its engine, its clients' streams and its description.
pub struct Machine {
    name: String,
    config: Described,
    vm: Arc<Vm>,
    /// The guest's memory, which may be read while the guest runs.
    memory: GuestRam,
    engine: Arc<Engine>,
    events: Arc<Fanout>,
    asked: Arc<AskedProbes>,
    sessions: Sessions,
    event_streams: Arc<ResumableStreams>,
    ending: watch::Receiver<Option<v1::Ending>>,
    /// Held by each thread that changes probes, also while it prepares the change before the stop.
    changing: Mutex<()>,
    optimizer: OptimizerThread,
    reader: ReaderThread,
    /// The most probes that the VM may have.
    max_probes: usize,
    /// True if clients may change the guest.
    allow_changes: bool,
    watched: Watched,
}

/// The settings that the VM was made with, as its description shows them.
#[derive(Debug)]
struct Described {
    kernel: PathBuf,
    kernel_version: String,
    vcpus: u32,
    memory_mib: u64,
}

impl Described {
    fn new(config: &VmConfig, kernel_version: String) -> Self {
        Self {
            kernel: config.kernel.name().to_owned(),
            kernel_version,
            vcpus: config.vcpus,
            memory_mib: config.memory_mib,
        }
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the VM's description.
    pub fn describe(&self) -> v1::Vm {
        let state = match self.vm.state() {
            VmState::Created => v1::VmState::Created,
            VmState::Running => v1::VmState::Running,
            VmState::Paused => v1::VmState::Paused,
            VmState::Ended => v1::VmState::Ended,
        };
        v1::Vm {
            name: self.name.clone(),
            state: state.into(),
            vcpus: self.config.vcpus,
            memory_mib: self.config.memory_mib,
            kernel: self.config.kernel.display().to_string(),
            kernel_version: self.config.kernel_version.clone(),
            symbols: self.engine.symbols().len() as u64,
            ending: self.ending.borrow().clone(),
            exits: Some(convert::exits(&self.vm.exits())),
            arena: Some(convert::arena(self.engine.arena_note())),
            optimizer: Some(self.optimizer.done()),
            ring_damage: self.engine.ring_damage(),
            stops: Some(convert::stops(&self.vm.stops())),
            clock: self.clock(),
        }
    }

    /// Lets the guest run its first instruction. Blocks.
    pub fn start(&self) -> Result<(), Status> {
        let handler: Arc<dyn TrapHandler> = Arc::clone(&self.engine) as _;
        self.watched.start();
        self.vm.start(&handler).map_err(|error| match error {
            StartError::State(error) => self.state_error(&error),
            StartError::Thread { .. } => status::exhausted("host threads", error.to_string()),
        })
    }

    /// Stops the vCPUs. Blocks until all are out of guest mode.
    pub fn pause(&self) -> Result<(), Status> {
        self.vm.pause().map_err(|error| self.state_error(&error))
    }

    /// Lets stopped vCPUs go on.
    pub fn resume(&self) -> Result<(), Status> {
        self.vm.resume().map_err(|error| self.state_error(&error))
    }

    /// Ends the guest. Returns at once; [`Self::ended`] waits for the end.
    pub fn kill(&self) {
        self.vm.kill();
    }

    /// Waits for the guest's end.
    pub async fn ended(&self) -> v1::Ending {
        let mut ending = self.ending.clone();
        match ending.wait_for(Option::is_some).await {
            Ok(ending) => ending.clone().unwrap_or_default(),
            // The thread that waits for the end has died: the monitor has a bug.
            Err(_) => v1::Ending {
                kind: v1::EndingKind::Failed.into(),
                exit_code: 7,
                detail: "the monitor lost track of the guest; see the server's log".to_owned(),
            },
        }
    }

    /// The events of all probes.
    pub fn events(&self) -> &Arc<Fanout> {
        &self.events
    }

    /// Clients' sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Clients' streams of events that can be resumed.
    pub fn event_streams(&self) -> &Arc<ResumableStreams> {
        &self.event_streams
    }

    /// Hertz of the guest's time stamp counter.
    pub fn tsc_hz(&self) -> u64 {
        self.vm.tsc_hz()
    }

    /// Returns the guest's time stamp counter and the host's clock, as they are now.
    pub fn clock(&self) -> Option<v1::ClockSample> {
        self.vm.clock().map(|sample| convert::clock(&sample))
    }

    /// Returns a reader of the guest's console output, past and future.
    pub fn console_output(&self) -> ConsoleReader {
        ConsoleReader::new(self.vm.console())
    }

    /// Sends input to the guest's console.
    pub fn console_input(&self, input: &[u8]) {
        self.vm.console().send(input);
    }

    /// Does some work while all vCPUs stand still.
    fn stopped<R>(&self, work: impl FnOnce(&StoppedVm<'_>) -> R) -> R {
        self.vm.stopped(work)
    }

    fn state_error(&self, error: &vmm::StateError) -> Status {
        let why = format!("VM `{}`: {error}", self.name);
        status::precondition(Precondition::State, &self.name, why)
    }
}
