//! Sinks of events: one that drops them, and the server's own fan-out.

use std::hint::black_box;
use std::sync::Arc;

use probe_engine::event::{Event, EventSink};
use vmprobe_server::Limits;
use vmprobe_server::testing::{Fanout, Subscription, event};

/// Drops them.
#[derive(Debug)]
pub struct Nobody;

impl EventSink for Nobody {
    fn event(&self, event: &Event) {
        black_box(event);
    }
}

/// The server's sink with one client, which reads nothing.
#[derive(Debug)]
pub struct Server {
    fanout: Arc<Fanout>,
}

/// A client of it.
#[derive(Debug)]
pub struct Client {
    _subscription: Subscription,
}

impl Server {
    /// A sink with no client yet.
    pub fn new() -> Arc<Self> {
        let fanout = Arc::new(Fanout::new(Limits::default().event_queue));
        Arc::new(Self { fanout })
    }

    /// A client with an empty queue, for as long as it isn't dropped. It takes 64 Ki events.
    pub fn client(&self) -> Client {
        Client {
            _subscription: self.fanout.subscribe(Vec::new()),
        }
    }
}

impl EventSink for Server {
    fn event(&self, hit: &Event) {
        self.fanout.publish(&event(hit));
    }
}
