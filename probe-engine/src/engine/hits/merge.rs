//! Merges what breakpoints report and what rings hold into one stream of events, in the order of time.
//!
//! A breakpoint's event is here as soon as it happens; a jump's record lies in a ring until the ring is drained. So
//! while there are jumps, events are held back until no earlier one can come any more. That moment is found as follows.
//!
//! Take any event that was here when a drain ended, and its time *t*. Any record from before *t* had its space in its
//! ring before *t*, as a detour reads the time only after it has reserved space. The next drain begins after *t*; it
//! reads each ring up to where space is reserved at that moment, and so finds the record, unless the record isn't whole
//! yet, in which case the drain says that the ring is blocked. So when a drain ends and no ring is blocked, all events
//! that are no younger than the youngest one that was here when the drain before it ended can go out, in order.
//!
//! That holds for guests whose vCPUs' time stamp counters agree, as KVM makes them. Two things aren't waited for
//! without end, and then an event goes out behind a younger one: a breakpoint's event whose thread got no CPU for
//! longer than a drain takes, and records behind one that stays unfinished ([`PATIENCE`]).

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
    /// A copy of [`Held::active`], to be read without a lock.
    active: AtomicBool,
    /// Locked to hand events on, before `held`.
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

/// Memory for handing on, which is kept as long as the merger is active: a full ring's events take some 5 MiB, which
/// would be allocated anew at each drain.
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
    /// Those that aren't younger than this.
    Until(Tsc),
    /// All but this many of the youngest.
    But(usize),
}

impl Merger {
    /// Makes a merger that hands events to `sink`, and isn't active.
    pub fn new(sink: Arc<dyn EventSink>) -> Self {
        Self {
            sink,
            active: AtomicBool::new(false),
            order: Lock::new(Rank::Order, Order::default()),
            held: Lock::new(Rank::Held, Held::default()),
            late: AtomicU64::new(0),
        }
    }

    /// Begins to hold events back, or hands on all that are held and lets later ones go straight through. While the
    /// merger is active, the rings have to be drained over and over, even if they are empty.
    pub fn set_active(&self, on: bool) {
        let mut order = self.order.lock();
        if on {
            self.held.lock().active = true;
            self.active.store(true, Ordering::Release);
            return;
        }
        self.hand_on(&mut order, Which::All);
        // Events that came in between go out with all other threads waiting, so that no younger event overtakes them.
        let mut held = self.held.lock();
        let Held { mut events, .. } = std::mem::take(&mut *held);
        events.sort_by_key(|event| event.tsc);
        for event in &events {
            self.send(&mut order, event);
        }
        *order = Order::default();
        self.active.store(false, Ordering::Release);
    }

    /// Hands on the events that are now known to be next, and returns how many are still held back. To be called when a
    /// drain has ended and the events of its records have all come, before the next drain begins. `blocked` is true if
    /// the drain found a ring blocked.
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
            // Events that have come meanwhile go behind these.
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
