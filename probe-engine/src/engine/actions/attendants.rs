//! The attendants that are asked at each hit of a probe, and the vCPUs that stand still until they answer.
//!
//! A vCPU at such a hit leaves the monitor's gate, so it holds up no stop, no pause and no end of the guest. It goes on
//! when there is an answer, when its attendant has gone, or when the time for an answer is over; the monitor itself
//! looks at the time, so a guest goes on whatever becomes of the attendant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestVirtAddr, Registers, VcpuId};
use smallvec::SmallVec;
use thiserror::Error;

use crate::action::HitAction;
use crate::engine::actions::moment::Moment;
use crate::engine::lock::{Lock, Rank};
use crate::engine::sites::probe::Probe;
use crate::event::Event;
use crate::probe::ProbeId;

/// A hit whose vCPU stands still.
#[derive(Debug, Clone)]
pub struct HeldHit {
    /// Its number among all hits of the engine's that were held.
    pub number: u64,
    /// What the probe tells of it.
    pub event: Event,
    /// All registers, whatever the probe captures.
    pub registers: Registers,
    /// The page tables that the vCPU uses, if they can be read.
    pub tables: Option<PageTables>,
}

/// Is asked at each hit of some probes.
pub trait Attendant: Send + Sync {
    /// Tells of a hit at which a vCPU stands still until [`answer`](crate::engine::Engine::answer). Called on the
    /// vCPU's thread: be quick, and wait for nothing.
    fn held(&self, hit: HeldHit);

    /// Tells the attendant that it isn't asked any more, as it has not answered in its time.
    fn dropped(&self);
}

/// Why an attendant can't be asked at the hits of some probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AttendError {
    /// There is no such probe.
    #[error("there is no probe number {0}; it may have been removed already: list the probes")]
    UnknownProbe(ProbeId),
    /// Another attendant is asked.
    #[error(
        "somebody is asked at the hits of probe number {0} already; wait until that stream ends"
    )]
    Attended(ProbeId),
    /// A watchpoint.
    #[error("probe number {0} is a watchpoint: what it watches has been accessed by then")]
    Watchpoint(ProbeId),
}

/// Why an answer comes to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// The hit isn't held, or not for this attendant.
    #[error("hit number {0} is not held: it was answered already, or its time is over")]
    NotHeld(u64),
}

/// A hit that is to be asked about.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) probe: Arc<Probe>,
    pub(crate) event: Event,
    pub(crate) moment: Moment,
}

/// Hits of one exit, the first of which is asked about first.
pub(crate) type AskedHits = SmallVec<[Asked; 1]>;

/// What a vCPU does when all attendants have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It goes on where it is.
    Resume,
    /// It executes the instruction of the site at this address, unless it has been sent elsewhere.
    Pass(GuestVirtAddr),
}

/// A vCPU that stands still.
struct Held {
    number: u64,
    asked: AskedHits,
    then: Then,
    rip: u64,
    until: Instant,
    attendant: Arc<dyn Attendant>,
    answer: Option<Vec<HitAction>>,
}

/// A vCPU that may go on.
pub(crate) struct Released {
    /// The hit that was asked about.
    pub(crate) asked: Asked,
    /// What its attendant answers; `None` if there was no answer.
    pub(crate) answer: Option<Vec<HitAction>>,
    /// Those still to be asked about.
    pub(crate) rest: AskedHits,
    pub(crate) then: Then,
    /// RIP when it was held.
    pub(crate) rip: u64,
}

/// Which attendant is asked at the hits of a probe, and how long it may take.
struct Attendance {
    by: Arc<dyn Attendant>,
    time: Duration,
    probe: Arc<Probe>,
}

#[derive(Default)]
struct State {
    attendants: BTreeMap<ProbeId, Attendance>,
    held: BTreeMap<VcpuId, Held>,
    last: u64,
}

/// See the module's text.
pub(crate) struct Attendants {
    /// Whether there are any attendants, to be read without the lock.
    any: AtomicBool,
    state: Lock<State>,
}

impl Attendants {
    pub(crate) fn new() -> Self {
        Self {
            any: AtomicBool::new(false),
            state: Lock::new(Rank::Attendants, State::default()),
        }
    }

    /// Returns true if an attendant is asked at the hits of any probe.
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Holds a vCPU for the first of these hits that an attendant is asked about. Returns true if it is held.
    pub(crate) fn hold(
        &self,
        vcpu: VcpuId,
        mut asked: AskedHits,
        then: Then,
        registers: &Registers,
        tables: Option<PageTables>,
    ) -> bool {
        let mut state = self.state.lock();
        asked.retain(|it| state.attendants.contains_key(&it.probe.id));
        let first = asked
            .first()
            .and_then(|it| Some((it.event.clone(), state.attendants.get(&it.probe.id)?)));
        let Some((event, attendance)) = first else {
            return false;
        };
        let attendant = Arc::clone(&attendance.by);
        let until = Instant::now() + attendance.time;
        state.last += 1;
        let number = state.last;
        let held = Held {
            number,
            asked,
            then,
            rip: registers.rip,
            until,
            attendant: Arc::clone(&attendant),
            answer: None,
        };
        state.held.insert(vcpu, held);
        drop(state);
        attendant.held(HeldHit {
            number,
            event,
            registers: *registers,
            tables,
        });
        true
    }

    /// Until when a vCPU is held; `None` if it isn't, or not any more.
    pub(crate) fn held_until(&self, vcpu: VcpuId) -> Option<Instant> {
        let state = self.state.lock();
        let held = state.held.get(&vcpu)?;
        let waits = held.answer.is_none() && state.has(&held.attendant);
        waits.then_some(held.until)
    }

    /// Ends the hold of a vCPU, and returns what became of it. An attendant that has not answered isn't asked any more.
    pub(crate) fn release(&self, vcpu: VcpuId) -> Option<Released> {
        let mut state = self.state.lock();
        let mut held = state.held.remove(&vcpu)?;
        let late = held.answer.is_none() && self.remove_from(&mut state, &held.attendant);
        drop(state);
        if late {
            held.attendant.dropped();
        }
        if held.asked.is_empty() {
            return None;
        }
        Some(Released {
            asked: held.asked.remove(0),
            answer: held.answer,
            rest: held.asked,
            then: held.then,
            rip: held.rip,
        })
    }
}

impl State {
    fn has(&self, attendant: &Arc<dyn Attendant>) -> bool {
        let mut all = self.attendants.values();
        all.any(|it| Arc::ptr_eq(&it.by, attendant))
    }

    /// Removes an attendant. Returns true if it was there.
    fn remove(&mut self, attendant: &Arc<dyn Attendant>) -> bool {
        let before = self.attendants.len();
        self.attendants.retain(|_, it| {
            let stays = !Arc::ptr_eq(&it.by, attendant);
            if !stays {
                it.probe.set_attended(false);
            }
            stays
        });
        before != self.attendants.len()
    }
}

impl Attendants {
    /// Asks an attendant at the hits of these probes.
    pub(crate) fn add(
        &self,
        probes: &[Arc<Probe>],
        time: Duration,
        attendant: &Arc<dyn Attendant>,
    ) -> Result<(), AttendError> {
        let mut state = self.state.lock();
        let taken = |probe: &&Arc<Probe>| state.attendants.contains_key(&probe.id);
        if let Some(probe) = probes.iter().find(taken) {
            return Err(AttendError::Attended(probe.id));
        }
        for probe in probes {
            probe.set_attended(true);
            let (by, probe) = (Arc::clone(attendant), Arc::clone(probe));
            let id = probe.id;
            state.attendants.insert(id, Attendance { by, time, probe });
        }
        self.note_any(&state);
        Ok(())
    }

    /// Asks an attendant no more.
    pub(crate) fn remove(&self, attendant: &Arc<dyn Attendant>) {
        self.remove_from(&mut self.state.lock(), attendant);
    }

    /// As [`Self::remove`]. Returns true if it was there.
    fn remove_from(&self, state: &mut State, attendant: &Arc<dyn Attendant>) -> bool {
        let was_there = state.remove(attendant);
        self.note_any(state);
        was_there
    }

    /// Notes for [`Self::are_any`] whether there are any attendants.
    fn note_any(&self, state: &State) {
        let any = !state.attendants.is_empty();
        self.any.store(any, Ordering::Release);
    }

    /// Takes the answer to a hit.
    pub(crate) fn answer(
        &self,
        attendant: &Arc<dyn Attendant>,
        number: u64,
        actions: Vec<HitAction>,
    ) -> Result<(), AnswerError> {
        let mut state = self.state.lock();
        let waits = |held: &&mut Held| {
            held.number == number
                && held.answer.is_none()
                && Arc::ptr_eq(&held.attendant, attendant)
        };
        let held = state.held.values_mut().find(waits);
        held.ok_or(AnswerError::NotHeld(number))?.answer = Some(actions);
        Ok(())
    }
}
