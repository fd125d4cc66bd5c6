//! One stream of events in the order of time, of what breakpoints report and what rings hold.
//!
//! A breakpoint's event is there when it happens, a jump's lies in a ring until somebody drains that.
//! So while there are jumps, events are held back until no earlier one can come any more. When is that?
//!
//! Take any event that was here when a drain ended, and its time *t*. Whatever record is of before *t*
//! had its space in its ring before *t*, as a detour reads the time only after it has reserved space.
//! The next drain begins after *t*; it reads each ring up to where space is reserved at that moment,
//! and so finds the record, unless it isn't whole yet, in which case the drain says that the ring is
//! blocked. So when a drain ends and no ring is blocked, all that is no younger than the youngest
//! event that was here when the drain before it ended can go out, in order.
//!
//! That holds for guests whose vCPUs' time stamp counters agree, as KVM makes them. Two things are let
//! go rather than waited for without end, and then an event goes out behind a younger one: a
//! breakpoint's event whose thread got no CPU for longer than a drain takes, and records behind one that
//! stays unfinished ([`PATIENCE`]).

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use guest_state::Tsc;

use crate::engine::lock::{Lock, Rank};
use crate::event::{Event, EventSink};

/// For how many drains in a row a blocked ring holds up all events.
const PATIENCE: u32 = 16;
/// Events that are held back at most, some 13 MiB; with more the oldest go out early.
const CAPACITY: usize = 1 << 16;

/// Brings events in order and hands them to the real sink.
///
/// As a sink it takes the events of breakpoints, on any thread, and those of records as a drain finds
/// them. While it isn't active, they go straight through.
pub struct Merger {
    sink: Arc<dyn EventSink>,
    /// What [`Held::active`] is, for a look without a lock.
    active: AtomicBool,
    /// Taken by whoever hands events on, before `held`.
    order: Lock<Order>,
    held: Lock<Held>,
    late: AtomicU64,
}

/// Events that wait.
#[derive(Default)]
struct Held {
    active: bool,
    events: Vec<Event>,
    /// The time of the youngest of them.
    youngest: Tsc,
}

/// What was handed on, and what may be next.
#[derive(Default)]
struct Order {
    /// The time of the youngest event that was here when the last drain ended.
    settled: Tsc,
    /// The time of the event that was handed on last.
    last: Tsc,
    /// How many drains in a row have found a blocked ring.
    blocked: u32,
    scratch: Scratch,
}

/// Memory for handing on, which is kept as long as the merger is active: a full ring's events take some 5 MiB, and
/// so much would be new at each drain.
#[derive(Default)]
struct Scratch {
    /// Empty, for the events to come.
    events: Vec<Event>,
    /// The times of events, and their places.
    times: Vec<(Tsc, usize)>,
}

/// Which of the held events are handed on.
#[derive(Clone, Copy)]
enum Which {
    All,
    /// Those that aren't younger.
    Until(Tsc),
    /// All but the youngest so many.
    But(usize),
}

impl Merger {
    /// One that hands events to `sink`, and isn't active.
    pub fn new(sink: Arc<dyn EventSink>) -> Self {
        Self {
            sink,
            active: AtomicBool::new(false),
            order: Lock::new(Rank::Order, Order::default()),
            held: Lock::new(Rank::Held, Held::default()),
            late: AtomicU64::new(0),
        }
    }

    /// Begins to hold events back; or hands on what there is and lets all that comes go straight
    /// through. While it is active, somebody has to drain the rings over and over, even if they are empty.
    pub fn set_active(&self, on: bool) {
        let mut order = self.order.lock();
        if on {
            self.held.lock().active = true;
            self.active.store(true, Ordering::Release);
            return;
        }
        self.hand_on(&mut order, Which::All);
        // What came in between, with all others waiting, so that nothing younger overtakes it.
        let mut held = self.held.lock();
        let Held { mut events, .. } = std::mem::take(&mut *held);
        events.sort_by_key(|event| event.tsc);
        for event in &events {
            self.send(&mut order, event);
        }
        *order = Order::default();
        self.active.store(false, Ordering::Release);
    }

    /// A drain has ended, whose records' events have all come, and this tells whether it found a ring
    /// blocked. Hands on what is now known to be next; says how many events are still held back. To be
    /// called before the next drain begins.
    pub fn drained(&self, blocked: bool) -> usize {
        let mut order = self.order.lock();
        order.blocked = if blocked {
            order.blocked.saturating_add(1)
        } else {
            0
        };
        if !(1..=PATIENCE).contains(&order.blocked) {
            let settled = order.settled;
            self.hand_on(&mut order, Which::Until(settled));
        }
        let held = self.held.lock();
        order.settled = held.youngest;
        held.events.len()
    }

    /// Hands on all that is held back. For a stop: when the rings have been drained while no vCPU runs,
    /// nothing older is to come.
    pub fn flush(&self) {
        self.hand_on(&mut self.order.lock(), Which::All);
    }

    /// How often an event has gone out behind a younger one.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    fn hand_on(&self, order: &mut Order, which: Which) {
        let Scratch {
            mut events,
            mut times,
        } = std::mem::take(&mut order.scratch);
        {
            let mut held = self.held.lock();
            held.youngest = Tsc::default();
            std::mem::swap(&mut held.events, &mut events);
        }
        // Events are long, so only their times are sorted. Those of one time go out as they came.
        times.extend(events.iter().map(|event| event.tsc).zip(0..));
        times.sort_unstable();
        let next = match which {
            Which::All => times.len(),
            Which::Until(time) => times.partition_point(|(tsc, _)| *tsc <= time),
            Which::But(count) => times.len().saturating_sub(count),
        };
        let (next, rest) = times.split_at_mut(next);
        for (_, place) in next {
            self.send(order, &events[*place]);
        }
        let youngest = rest.last().map(|(tsc, _)| *tsc);
        // The rest moves to the front.
        rest.sort_unstable_by_key(|(_, place)| *place);
        for (to, (_, place)) in rest.iter().enumerate() {
            events.swap(to, *place);
        }
        events.truncate(rest.len());
        if let Some(youngest) = youngest {
            let mut held = self.held.lock();
            held.youngest = held.youngest.max(youngest);
            // What has come meanwhile came later.
            events.append(&mut held.events);
            std::mem::swap(&mut held.events, &mut events);
        }
        times.clear();
        order.scratch = Scratch { events, times };
    }

    fn send(&self, order: &mut Order, event: &Event) {
        if event.tsc < order.last {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        order.last = event.tsc;
        self.sink.event(event);
    }
}

impl EventSink for Merger {
    fn event(&self, event: &Event) {
        if !self.active.load(Ordering::Acquire) {
            return self.sink.event(event);
        }
        let mut held = self.held.lock();
        if !held.active {
            drop(held);
            return self.sink.event(event);
        }
        held.events.push(event.clone());
        held.youngest = held.youngest.max(event.tsc);
        let is_full = held.events.len() >= CAPACITY;
        drop(held);
        if is_full {
            self.hand_on(&mut self.order.lock(), Which::But(CAPACITY / 2));
        }
    }

    fn is_wanted(&self) -> bool {
        self.sink.is_wanted()
    }

    fn may_jump(&self) {
        self.sink.may_jump();
    }
}
