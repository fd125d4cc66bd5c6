//! A registered probe while it lives: what it is, where it is now, and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use guest_state::GuestVirtAddr;
use parking_lot::{Mutex, MutexGuard};

use crate::action::ActionFailure;
use crate::engine::sites::hit_counters::HitCounters;
use crate::engine::sites::switches::Switches;
use crate::engine::sites::ways_out::WaysOut;
use crate::probe::{
    Capture, Optimization, Options, Place, ProbeCounts, ProbeId, ProbeInfo, ProbeKind, ProbeSpec,
    ProbeState, Strategy,
};

/// Where a probe is at the moment.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    pub(crate) address: GuestVirtAddr,
    pub(crate) symbol: String,
    pub(crate) offset: u64,
    pub(crate) instruction: String,
    pub(crate) strategy: Strategy,
    pub(crate) reason: String,
    /// How many bytes of its function are executed before it; `None` where it is at the entry.
    pub(crate) beyond_entry: Option<u64>,
    /// Where the function is left, if the probe has breakpoints there.
    pub(crate) out: Option<Arc<WaysOut>>,
}

/// Whether a probe has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its module has not been loaded yet.
    Pending,
    Placed,
    /// The memory it was in was freed.
    Gone,
}

/// See the module's text.
///
/// What a hit looks at comes first and lies in one line of the cache, see [`Site`](super::site::Site).
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Probe {
    pub(crate) id: ProbeId,
    counters: HitCounters,
    pub(crate) kind: ProbeKind,
    /// True if an attendant is asked at each hit.
    attended: AtomicBool,
    /// Its options ask for nothing but an event with registers and the context, or a count.
    pub(crate) is_plain: bool,
    /// As in the options.
    pub(crate) capture: Capture,
    pub(crate) options: Options,
    missed: AtomicU64,
    /// Calls that never return.
    ended: AtomicU64,
    /// Those of the exits that were at a tripwire.
    trips: AtomicU64,
    /// Actions that were done, and those that were not.
    actions: AtomicU64,
    failed_actions: AtomicU64,
    action_failure: Mutex<Option<ActionFailure>>,
    /// Calls that a return probe follows now, and at most.
    active: AtomicU32,
    pub(crate) max_active: u32,
    pub(crate) name: Arc<str>,
    /// The place that was asked for.
    pub(crate) place: Place,
    where_now: Mutex<(Presence, Spot)>,
}

impl Probe {
    pub(crate) fn new(
        id: ProbeId,
        name: Arc<str>,
        spec: &ProbeSpec,
        max_active: u32,
        spot: (Presence, Spot),
        counters: HitCounters,
    ) -> Self {
        Self {
            id,
            name,
            kind: spec.kind,
            place: spec.place.clone(),
            is_plain: spec.options.are_plain(),
            capture: spec.options.capture,
            options: spec.options.clone(),
            where_now: Mutex::new(spot),
            counters,
            missed: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            trips: AtomicU64::new(0),
            attended: AtomicBool::new(false),
            actions: AtomicU64::new(0),
            failed_actions: AtomicU64::new(0),
            action_failure: Mutex::new(None),
            active: AtomicU32::new(0),
            max_active,
        }
    }

    /// The module it waits for or is in.
    pub(crate) fn module(&self) -> Option<&str> {
        match &self.place {
            Place::Symbol { module, .. } => module.as_deref(),
            Place::Address(_) => None,
        }
    }

    /// Returns true if the probe has been removed, so that no client is interested in it any more.
    pub(crate) fn is_removed(&self) -> bool {
        self.counters.is_closed()
    }

    /// Returns true if an attendant is asked at each hit.
    pub(crate) fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Relaxed)
    }

    pub(crate) fn set_attended(&self, on: bool) {
        self.attended.store(on, Ordering::Relaxed);
    }

    /// Counts an action that was done or has failed: one of the probe's own, or one that an answer to its hit asked
    /// for.
    pub(crate) fn acted(&self, result: Result<(), ActionFailure>) {
        match result {
            Ok(()) => {
                self.actions.fetch_add(1, Ordering::Relaxed);
            }
            Err(failure) => {
                self.failed_actions.fetch_add(1, Ordering::Relaxed);
                *self.action_failure.lock() = Some(failure);
            }
        }
    }

    pub(crate) fn wants_post(&self) -> bool {
        matches!(self.kind, ProbeKind::Instruction { post: true, .. })
    }

    pub(crate) fn wants_fault(&self) -> bool {
        matches!(self.kind, ProbeKind::Instruction { fault: true, .. })
    }

    pub(crate) fn presence(&self) -> Presence {
        self.where_now().0
    }

    pub(crate) fn address(&self) -> GuestVirtAddr {
        self.where_now().1.address
    }

    /// How many bytes of its function are executed before it; `None` where it is at the entry.
    pub(crate) fn beyond_entry(&self) -> Option<u64> {
        self.where_now().1.beyond_entry
    }

    /// Where its function is left, if it has breakpoints there.
    pub(crate) fn ways_out(&self) -> Option<Arc<WaysOut>> {
        self.where_now().1.out.clone()
    }

    /// All instructions that it has a breakpoint on, its address first.
    pub(crate) fn places(&self) -> Vec<GuestVirtAddr> {
        let (address, out) = (self.address(), self.ways_out());
        let others = out.iter().flat_map(|out| out.all());
        let others = others.filter(|at| *at != address);
        [address].into_iter().chain(others).collect()
    }

    /// Gives the probe a place, again or for the first time.
    pub(crate) fn put(&self, spot: Spot) {
        *self.where_now() = (Presence::Placed, spot);
    }

    /// Notes that the memory that the probe was in has been freed.
    pub(crate) fn set_gone(&self) {
        self.where_now().0 = Presence::Gone;
    }

    /// Sets the reason why the probe has no place.
    pub(crate) fn set_reason(&self, reason: &str) {
        reason.clone_into(&mut self.where_now().1.reason);
    }

    pub(crate) fn hit(&self) {
        self.hit_often(1);
    }

    pub(crate) fn hit_often(&self, times: u64) {
        self.counters.hit(times);
    }

    pub(crate) fn exit(&self) {
        self.counters.exit();
    }

    /// Counts an exit at one of its jump's tripwires.
    pub(crate) fn trip(&self) {
        self.exit();
        self.trips.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn miss(&self) {
        self.miss_often(1);
    }

    pub(crate) fn miss_often(&self, times: u64) {
        self.missed.fetch_add(times, Ordering::Relaxed);
    }

    /// Takes one of the calls that may be followed at a time, if there is one left.
    pub(crate) fn begin_call(&self) -> bool {
        let one_more = |active| (active < self.max_active).then_some(active + 1);
        self.active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }

    pub(crate) fn end_call(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a followed call that never returns, as its task has ended.
    pub(crate) fn lose_call(&self) {
        self.end_call();
        self.lose_calls(1);
    }

    /// As [`Self::lose_call`], of calls that detours follow.
    pub(crate) fn lose_calls(&self, times: u64) {
        self.ended.fetch_add(times, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> &HitCounters {
        &self.counters
    }

    /// How often it was hit so far.
    pub(crate) fn counts(&self) -> ProbeCounts {
        ProbeCounts {
            id: self.id,
            hits: self.counters.hits(),
            missed: self.missed.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
        }
    }

    /// What clients are told of the probe; `optimization` is what its site tells of jumps.
    pub(crate) fn info(&self, switches: &Switches, optimization: Optimization) -> ProbeInfo {
        let (presence, spot) = self.where_now().clone();
        let kind = match self.kind {
            ProbeKind::Return { .. } => ProbeKind::Return {
                maxactive: Some(self.max_active),
            },
            ProbeKind::Exits { .. } => ProbeKind::Exits {
                maxactive: Some(self.max_active),
            },
            kind => kind,
        };
        ProbeInfo {
            id: self.id,
            name: self.name.to_string(),
            kind,
            address: spot.address,
            module: self.module().map(str::to_owned),
            symbol: spot.symbol,
            offset: spot.offset,
            instruction: spot.instruction,
            strategy: spot.strategy,
            reason: spot.reason,
            hits: self.counters.hits(),
            missed: self.missed.load(Ordering::Relaxed),
            ended: self.ended.load(Ordering::Relaxed),
            exits: self.counters.exits(),
            trips: self.trips.load(Ordering::Relaxed),
            actions: self.actions.load(Ordering::Relaxed),
            failed_actions: self.failed_actions.load(Ordering::Relaxed),
            action_failure: self.action_failure(),
            attended: self.is_attended(),
            state: match presence {
                Presence::Gone => ProbeState::Gone,
                _ if !switches.is_enabled(self.id) => ProbeState::Disabled,
                Presence::Pending => ProbeState::Pending,
                Presence::Placed => ProbeState::Armed,
            },
            options: Options {
                optimize: switches.may_optimize(self.id),
                ..self.options.clone()
            },
            optimization,
        }
    }

    fn action_failure(&self) -> String {
        let failure = *self.action_failure.lock();
        failure.map_or_else(String::new, |failure| failure.to_string())
    }

    fn where_now(&self) -> MutexGuard<'_, (Presence, Spot)> {
        self.where_now.lock()
    }
}
