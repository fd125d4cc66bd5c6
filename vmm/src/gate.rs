//! The stop protocol: which vCPUs may be in guest mode.
//!
//! A vCPU asks the gate before it enters guest mode and tells it when it has left. A
//! control thread that stops the guest, or a vCPU that steps alone, becomes the
//! gate's holder: the gate kicks the other vCPUs out of guest mode, and the holder
//! goes on when the last one has left.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::stops::{RecentStop, StopLog, Stops};

/// Who holds the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Control,
    Vcpu(usize),
}

/// Decides which vCPUs may be in guest mode; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Set while `state` may forbid a vCPU to be in guest mode. The run loop reads this
    /// after each exit instead of taking the lock.
    closed: AtomicBool,
    kick: OnceLock<Box<dyn Kick>>,
}

/// How a vCPU is driven out of guest mode.
pub(crate) trait Kick: Send + Sync + std::fmt::Debug {
    /// Makes vCPU `index` leave guest mode soon, if it is there.
    fn kick(&self, index: usize);
}

/// What a vCPU is let in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// To run.
    Run,
    /// To execute one instruction in a guest that is paused.
    Step,
}

#[derive(Debug)]
struct State {
    inside: Vec<bool>,
    holder: Option<Holder>,
    paused: bool,
    /// The vCPU that may enter although the guest is paused.
    stepping: Option<usize>,
    ended: bool,
    stops: StopLog,
}

impl State {
    fn may_enter(&self, vcpu: usize) -> bool {
        match self.holder {
            Some(holder) => holder == Holder::Vcpu(vcpu),
            None => !self.paused || self.stepping == Some(vcpu),
        }
    }

    fn pause(&mut self) {
        self.paused = true;
        self.stepping = None;
    }
}

impl Gate {
    /// A gate for `vcpus` vCPUs, paused until [`set_paused`](Self::set_paused).
    pub(crate) fn new(vcpus: usize) -> Self {
        let state = State {
            inside: vec![false; vcpus],
            holder: None,
            paused: true,
            stepping: None,
            ended: false,
            stops: StopLog::default(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            closed: AtomicBool::new(true),
            kick: OnceLock::new(),
        }
    }

    /// Sets how vCPUs are kicked. Called before the first vCPU enters.
    pub(crate) fn set_kick(&self, kick: Box<dyn Kick>) {
        let _set_once = self.kick.set(kick);
    }

    /// Waits until vCPU `vcpu` may go into guest mode, and lets it in. Returns None if
    /// the guest has ended.
    pub(crate) fn enter(&self, vcpu: usize) -> Option<Entry> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if state.may_enter(vcpu) {
                state.inside[vcpu] = true;
                return Some(match state.stepping {
                    Some(stepping) if stepping == vcpu => Entry::Step,
                    _ => Entry::Run,
                });
            }
            self.changed.wait(&mut state);
        }
    }

    /// As [`enter`](Self::enter), but not before `held_until` says that the vCPU need not stand
    /// still any more, or the time that it gives has come. It is asked again after each
    /// [`look_again`](Self::look_again).
    pub(crate) fn enter_when_released(
        &self,
        vcpu: usize,
        held_until: impl Fn() -> Option<Instant>,
    ) -> bool {
        let mut state = self.state.lock();
        while !state.ended {
            let until = held_until().filter(|until| Instant::now() < *until);
            match until {
                Some(until) => {
                    self.changed.wait_until(&mut state, until);
                }
                None if state.may_enter(vcpu) => {
                    state.inside[vcpu] = true;
                    return true;
                }
                None => self.changed.wait(&mut state),
            }
        }
        false
    }

    /// Makes held vCPUs ask again whether they still are.
    pub(crate) fn look_again(&self) {
        // A vCPU that has just asked, under this lock, waits by now.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Pauses all vCPUs, and doesn't wait until they have left guest mode, so that a vCPU's
    /// own thread may call it. A vCPU that steps alone finishes first.
    pub(crate) fn pause_soon(&self) {
        let mut state = self.state.lock();
        state.pause();
        self.closed.store(true, Ordering::Release);
        for vcpu in 0..state.inside.len() {
            if state.inside[vcpu] && !state.may_enter(vcpu) {
                self.kick(vcpu);
            }
        }
    }

    /// Tells that vCPU `vcpu` has left guest mode and that its state is complete.
    pub(crate) fn leave(&self, vcpu: usize) {
        self.state.lock().inside[vcpu] = false;
        self.changed.notify_all();
    }

    /// Returns true if vCPU `vcpu`, which is in guest mode, must leave it.
    pub(crate) fn must_leave(&self, vcpu: usize) -> bool {
        if !self.closed.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.lock();
        state.ended || !state.may_enter(vcpu)
    }

    /// Stops all vCPUs for a control thread, until the hold is dropped.
    pub(crate) fn stop(&self) -> Hold<'_> {
        self.take(Holder::Control)
    }

    /// As [`enter`](Self::enter), with all other vCPUs stopped until the hold is
    /// dropped. Returns None if the guest has ended.
    pub(crate) fn enter_alone(&self, vcpu: usize) -> Option<Hold<'_>> {
        let hold = self.take(Holder::Vcpu(vcpu));
        let mut state = self.state.lock();
        if state.ended {
            // The hold takes the lock itself when it is dropped.
            drop(state);
            return None;
        }
        state.inside[vcpu] = true;
        Some(hold)
    }

    fn take(&self, holder: Holder) -> Hold<'_> {
        let mut state = self.state.lock();
        // A paused guest executes nothing, not even a lone step, unless a debugger steps that
        // vCPU. A control thread may stop it, as that executes nothing.
        let may_take = |state: &State| match holder {
            Holder::Control => true,
            Holder::Vcpu(vcpu) => !state.paused || state.stepping == Some(vcpu) || state.ended,
        };
        let waits = |state: &State| state.holder.is_some() || !may_take(state);
        while waits(&state) {
            self.changed.wait(&mut state);
        }
        state.holder = Some(holder);
        let since = Instant::now();
        drop(self.empty(state));
        Hold { gate: self, since }
    }

    /// Kicks the vCPUs that may not be in guest mode and waits until they have left it.
    fn empty<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.closed.store(true, Ordering::Release);
        let stays = |state: &State, vcpu: usize| !state.ended && state.may_enter(vcpu);
        for vcpu in 0..state.inside.len() {
            if state.inside[vcpu] && !stays(&state, vcpu) {
                self.kick(vcpu);
            }
        }
        while (0..state.inside.len()).any(|v| state.inside[v] && !stays(&state, v)) {
            self.changed.wait(&mut state);
        }
        state
    }

    /// Pauses or resumes all vCPUs. A pause returns when all have left guest mode.
    pub(crate) fn set_paused(&self, paused: bool) {
        let mut state = self.state.lock();
        if !paused {
            state.paused = false;
            state.stepping = None;
            self.reopen(&state);
            return;
        }
        // A holder that steps alone finishes first, so that nothing runs after.
        while state.holder.is_some() && !state.ended {
            self.changed.wait(&mut state);
        }
        state.pause();
        drop(self.empty(state));
    }

    /// Lets one vCPU of a paused guest enter, and no other, until the next pause. Returns false if
    /// the guest isn't paused.
    pub(crate) fn step(&self, vcpu: usize) -> bool {
        let mut state = self.state.lock();
        if state.paused {
            state.stepping = Some(vcpu);
            self.changed.notify_all();
        }
        state.paused
    }

    /// Counts of the stops that are over.
    pub(crate) fn stops(&self) -> Stops {
        self.state.lock().stops.sums()
    }

    /// The last stops of all vCPUs that are over, at most `most`, the oldest first.
    pub(crate) fn recent_stops(&self, most: usize) -> Vec<RecentStop> {
        self.state.lock().stops.recent(most)
    }

    /// Returns true if all vCPUs are paused on request.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    /// Lets no vCPU into guest mode any more. Returns at once, so that a vCPU's own thread
    /// may call it.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.closed.store(true, Ordering::Release);
        for vcpu in 0..state.inside.len() {
            if state.inside[vcpu] {
                self.kick(vcpu);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn kick(&self, vcpu: usize) {
        if let Some(kick) = self.kick.get() {
            kick.kick(vcpu);
        }
    }

    fn reopen(&self, state: &State) {
        let closed = state.holder.is_some() || state.paused || state.ended;
        self.closed.store(closed, Ordering::Release);
        self.changed.notify_all();
    }
}

/// Keeps the vCPUs out of guest mode until it is dropped.
#[must_use = "the vCPUs run again when it is dropped"]
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    gate: &'a Gate,
    since: Instant,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if let Some(holder) = state.holder.take() {
            let time = self.since.elapsed();
            match holder {
                Holder::Control => state.stops.add(time),
                Holder::Vcpu(_) => state.stops.add_alone(time),
            }
        }
        self.gate.reopen(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicU64},
        thread,
        time::Duration,
    };

    use super::*;

    /// vCPUs that need no kick: they look at the gate all the time.
    fn spawn_vcpus(
        gate: &Arc<Gate>,
        count: usize,
    ) -> (Vec<Arc<AtomicU64>>, Vec<thread::JoinHandle<()>>) {
        (0..count)
            .map(|index| {
                let gate = Arc::clone(gate);
                let work = Arc::new(AtomicU64::new(0));
                let counter = Arc::clone(&work);
                let thread = thread::spawn(move || {
                    while gate.enter(index).is_some() {
                        while !gate.must_leave(index) {
                            counter.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                        }
                        gate.leave(index);
                    }
                });
                (work, thread)
            })
            .unzip()
    }

    fn wait_for_work(work: &[Arc<AtomicU64>]) {
        for counter in work {
            let before = counter.load(Ordering::Relaxed);
            while counter.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn no_vcpu_runs_while_the_gate_is_held_and_all_go_on_after() {
        let gate = Arc::new(Gate::new(3));
        let (work, threads) = spawn_vcpus(&gate, 3);
        gate.set_paused(false);
        for _ in 0..50 {
            wait_for_work(&work);
            let hold = gate.stop();
            let total = || work.iter().map(|w| w.load(Ordering::Relaxed)).sum::<u64>();
            let before = total();
            for _ in 0..10 {
                thread::yield_now();
            }
            assert_eq!(total(), before);
            drop(hold);
        }
        gate.set_paused(true);
        assert!(gate.is_paused());
        let stops = gate.stops();
        assert_eq!((stops.count, stops.alone), (50, 0), "a pause is no stop");
        assert!(stops.longest <= stops.time && stops.longest * 50 >= stops.time);
        assert_eq!(stops.lengths.iter().sum::<u64>(), 50);
        assert_eq!(gate.recent_stops(20).len(), 20);
        // A stop while paused leaves them paused.
        drop(gate.stop());
        assert!(gate.is_paused());
        gate.end();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn vcpus_that_all_want_to_step_alone_take_turns() {
        let gate = Arc::new(Gate::new(4));
        let alone = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (gate, alone) = (Arc::clone(&gate), Arc::clone(&alone));
                thread::spawn(move || {
                    for _ in 0..200 {
                        assert!(gate.enter(index).is_some());
                        gate.leave(index);
                        let hold = gate.enter_alone(index).unwrap();
                        assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(!gate.must_leave(index));
                        alone.fetch_sub(1, Ordering::SeqCst);
                        gate.leave(index);
                        drop(hold);
                    }
                })
            })
            .collect();
        gate.set_paused(false);
        for thread in threads {
            thread.join().unwrap();
        }
        let stops = gate.stops();
        assert_eq!((stops.count, stops.alone), (0, 4 * 200));
        assert!(gate.recent_stops(20).is_empty());
    }

    #[test]
    fn a_lone_step_after_the_end_is_refused_and_holds_nothing() {
        let gate = Gate::new(1);
        gate.end();
        assert!(gate.enter_alone(0).is_none());
        drop(gate.stop());
    }

    #[test]
    fn the_end_makes_every_vcpu_leave() {
        let gate = Arc::new(Gate::new(2));
        let (work, threads) = spawn_vcpus(&gate, 2);
        gate.set_paused(false);
        wait_for_work(&work);
        gate.end();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(gate.enter(0).is_none());
    }

    #[test]
    fn a_held_vcpu_is_in_nobody_s_way_and_goes_on_when_it_is_released() {
        let gate = Arc::new(Gate::new(2));
        gate.set_paused(false);
        let held = Arc::new(AtomicBool::new(true));
        let (their_gate, theirs) = (Arc::clone(&gate), Arc::clone(&held));
        let thread = thread::spawn(move || {
            let far = Instant::now() + Duration::from_secs(3600);
            let until = || theirs.load(Ordering::Acquire).then_some(far);
            their_gate.enter_when_released(0, until) && !theirs.load(Ordering::Acquire)
        });
        // A stop doesn't wait for the held vCPU.
        drop(gate.stop());
        gate.set_paused(true);
        gate.set_paused(false);
        held.store(false, Ordering::Release);
        gate.look_again();
        assert!(thread.join().unwrap());
    }

    #[test]
    fn a_held_vcpu_goes_on_when_its_time_is_over_and_ends_with_the_guest() {
        let gate = Arc::new(Gate::new(1));
        gate.set_paused(false);
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(gate.enter_when_released(0, || Some(soon)));
        assert!(Instant::now() >= soon);
        gate.leave(0);
        let their_gate = Arc::clone(&gate);
        let far = Instant::now() + Duration::from_secs(3600);
        let thread = thread::spawn(move || their_gate.enter_when_released(0, || Some(far)));
        gate.end();
        assert!(!thread.join().unwrap());
    }

    #[test]
    fn a_vcpu_can_pause_the_guest_that_it_belongs_to() {
        let gate = Gate::new(1);
        gate.set_paused(false);
        assert_eq!(gate.enter(0), Some(Entry::Run));
        assert!(!gate.must_leave(0));
        gate.pause_soon();
        assert!(gate.must_leave(0) && gate.is_paused());
        gate.leave(0);
        gate.set_paused(false);
        assert_eq!(gate.enter(0), Some(Entry::Run));
    }

    #[test]
    fn one_vcpu_of_a_paused_guest_steps_also_alone_until_the_next_pause() {
        let gate = Gate::new(2);
        assert!(gate.step(1));
        assert_eq!(gate.enter(1), Some(Entry::Step));
        assert!(!gate.must_leave(1) && gate.must_leave(0));
        gate.leave(1);
        let hold = gate.enter_alone(1).unwrap();
        gate.leave(1);
        drop(hold);
        assert_eq!(gate.enter(1), Some(Entry::Step));
        gate.pause_soon();
        assert!(gate.must_leave(1));
        gate.leave(1);
        gate.set_paused(false);
        assert!(!gate.step(1), "a guest that runs has nobody to step");
        assert_eq!(gate.enter(1), Some(Entry::Run));
    }
}
