//! Clients that are asked at each hit of some probes, with the vCPU of the hit standing still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::paging::{self, PageTables};
use parking_lot::Mutex;
use probe_engine::action::{ActionFailure, HitAction};
use probe_engine::engine::{AttendError, Attendant, HeldHit};
use probe_engine::probe::{ProbeId, Switch};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::{Code, Status};
use vmm::StoppedVm;
use vmprobe_proto::v1;

use super::Machine;
use super::asked::AskedProbes;
use super::probes::retried;
use crate::{convert, status};

/// A message to the client that is asked.
#[derive(Debug)]
pub enum Told {
    /// A vCPU stands still at a hit.
    Hit(Box<v1::HeldHit>),
    /// A hit was not answered in time. The client isn't asked any more.
    Late,
}

/// A hit that waits for its answer.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    probe: ProbeId,
    tables: Option<PageTables>,
}

/// Hands hits on to the client's stream. Each vCPU has at most one hit that waits for its answer, so not many wait.
struct Asking {
    asked: Arc<AskedProbes>,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    to: UnboundedSender<Told>,
}

impl Attendant for Asking {
    fn held(&self, hit: HeldHit) {
        let waiting = Waiting {
            probe: hit.event.probe,
            tables: hit.tables,
        };
        self.waiting.lock().insert(hit.number, waiting);
        let told = v1::HeldHit {
            number: hit.number,
            event: Some(self.asked.event(&hit.event)),
            registers: Some(convert::registers(&hit.registers)),
        };
        // If the client has gone, it is soon no longer asked.
        let _ = self.to.send(Told::Hit(Box::new(told)));
    }

    fn dropped(&self) {
        let _ = self.to.send(Told::Late);
    }
}

/// A client is asked as long as this value exists.
pub struct Attendance {
    machine: Arc<Machine>,
    asking: Arc<Asking>,
    who: Arc<dyn Attendant>,
    probes: Vec<ProbeId>,
}

impl Machine {
    /// Asks a client at each hit of these probes, to answer within `time`. Blocks.
    ///
    /// # Errors
    /// There is no such probe, or no probe at all, or another client is asked. This client isn't asked then.
    pub fn attend(
        self: &Arc<Self>,
        selector: &v1::ProbeSelector,
        time: Duration,
    ) -> Result<(Attendance, UnboundedReceiver<Told>), Status> {
        let _alone = self.changing.lock();
        let probes = self.ids(selector)?;
        if probes.is_empty() {
            return Err(status::invalid(
                "begin.probes",
                "the probes whose hits are to be answered are missing",
            ));
        }
        let (to, from) = unbounded_channel();
        let asking = Arc::new(Asking {
            asked: Arc::clone(&self.asked),
            waiting: Mutex::default(),
            to,
        });
        let who: Arc<dyn Attendant> = Arc::clone(&asking) as _;
        let attended = self.engine.attend(&probes, time, &who);
        attended.map_err(|error| {
            let code = match error {
                AttendError::UnknownProbe(_) => Code::NotFound,
                AttendError::Attended(_) => Code::AlreadyExists,
                AttendError::Watchpoint(_) => Code::InvalidArgument,
            };
            status::with_field(code, "begin.probes", error.to_string())
        })?;
        // From here on, dropping this lets the guest go on.
        let attendance = Attendance {
            machine: Arc::clone(self),
            asking,
            who,
            probes,
        };
        self.switch_attended(&attendance.probes, true)?;
        Ok((attendance, from))
    }

    /// Turns jumps into breakpoints for a client that is asked (`on`), or lets them be jumps again. Blocks.
    fn switch_attended(&self, probes: &[ProbeId], on: bool) -> Result<(), Status> {
        let switch = Switch::Attended(on);
        let switching = self.engine.draft_switch(Some(probes), switch);
        let mut switching = switching.map_err(|error| status::change(&error))?;
        let mut switch = |stopped: &StoppedVm<'_>| {
            let switched = self.engine.switch_drafted(stopped, &mut switching);
            switched.map_err(|error| status::change(&error))
        };
        retried(|| self.change(&mut switch)).map(drop)
    }
}

impl Attendance {
    /// The numbers of the probes.
    pub fn probe_ids(&self) -> Vec<u64> {
        self.probes.iter().map(|id| id.0).collect()
    }

    /// Lets the vCPU of a hit go on after these actions.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: there is no such hit, or an action can't be done there. `FAILED_PRECONDITION`: the
    /// server's owner has not allowed it.
    pub fn answer(&self, answer: &v1::AnswerHit) -> Result<(), Status> {
        let waiting = self.waiting("answer.hit", answer.hit)?;
        let field = |index| format!("answer.actions[{index}]");
        let actions = convert::actions(&answer.actions)
            .map_err(|(index, (_, why))| status::invalid(field(index), why))?;
        if let Some(index) = actions.iter().position(HitAction::changes_guest) {
            self.machine.may_change_guest(field(index))?;
        }
        let engine = &self.machine.engine;
        engine
            .check_answer(waiting.probe, &actions)
            .map_err(|why| status::invalid("answer.actions", why.to_string()))?;
        self.asking.waiting.lock().remove(&answer.hit);
        // An answer that comes too late has no effect. The stream gets its own message of that.
        if engine.answer(&self.who, answer.hit, actions).is_ok() {
            self.machine.vm.look_again();
        }
        Ok(())
    }

    /// Returns guest memory as the vCPU of a hit sees it, up to the first page that isn't mapped. Blocks.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: there is no such hit.
    pub fn read(&self, asked: &v1::ReadHitMemory) -> Result<v1::HitMemory, Status> {
        let waiting = self.waiting("read_memory.hit", asked.hit)?;
        let mut data = vec![0; asked.length as usize];
        let at = GuestVirtAddr(asked.address);
        let kernel = self.machine.engine.kernel_root();
        let done = match waiting.tables {
            None => 0,
            Some(tables) => {
                match paging::read_virt_or(&self.machine.memory, tables, kernel, at, &mut data) {
                    Ok(()) => data.len(),
                    Err(fault) => fault.done,
                }
            }
        };
        data.truncate(done);
        Ok(v1::HitMemory {
            hit: asked.hit,
            address: asked.address,
            data,
        })
    }

    /// Writes guest memory as the vCPU of a hit sees it. Blocks.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: there is no such hit. `FAILED_PRECONDITION`: the server's owner has not allowed it.
    pub fn write(&self, asked: &v1::WriteHitMemory) -> Result<v1::HitMemoryWritten, Status> {
        self.machine.may_change_guest("write_memory")?;
        let waiting = self.waiting("write_memory.hit", asked.hit)?;
        let at = GuestVirtAddr(asked.address);
        let engine = &self.machine.engine;
        let tables = waiting.tables.ok_or(ActionFailure::NoPageTables);
        let written = tables
            .and_then(|tables| engine.write_memory(&self.machine.memory, tables, at, &asked.data));
        Ok(v1::HitMemoryWritten {
            hit: asked.hit,
            failure: written
                .err()
                .map_or_else(String::new, |why| why.to_string()),
        })
    }

    /// Stops asking the client. The guest goes on at once. The probes may become jumps again later. Blocks.
    pub fn end(&self) {
        self.leave();
        let machine = &self.machine;
        let _alone = machine.changing.lock();
        let there = machine.engine.list();
        let is_free = |id: &&ProbeId| there.iter().any(|it| it.id == **id && !it.attended);
        let probes: Vec<ProbeId> = self.probes.iter().filter(is_free).copied().collect();
        if let Err(why) = machine.switch_attended(&probes, false) {
            tracing::warn!(vm = machine.name, "probes stay breakpoints: {why}");
        }
    }

    fn leave(&self) {
        self.machine.engine.ask_no_more(&self.who);
        self.machine.vm.look_again();
    }

    fn waiting(&self, field: &str, hit: u64) -> Result<Waiting, Status> {
        let found = self.asking.waiting.lock().get(&hit).copied();
        found.ok_or_else(|| {
            let why = format!("hit number {hit} is none that waits for an answer of this client");
            status::invalid(field, why)
        })
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.leave();
    }
}
