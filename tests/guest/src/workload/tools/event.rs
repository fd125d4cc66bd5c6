//! Probes of the kernel's own as dynamic trace events: kprobes, kretprobes, function probes.

use std::io;

use serde_json::Value;

use super::{Tool, optimizer};
use crate::workload::{kprobe, tracefs};

/// Group and name of the event; there is one at a time.
const NAME: &str = "theirs";
const EVENT: &str = "mine/theirs";

/// A dynamic event.
pub struct Event {
    /// Its place in the kernel's list, for kprobes whose state is reported.
    place: Option<String>,
    /// True if the kernel may make it a jump.
    optimized: bool,
    /// Where its counts are.
    counted: Counted,
    on: bool,
    seen: u64,
}

/// Where an event's hits are counted.
#[derive(PartialEq, Eq)]
enum Counted {
    /// `kprobe_profile`.
    Profile,
    /// Lines of the trace.
    Lines,
}

impl Event {
    /// A kprobe (`p`) or kretprobe (`r`), registered and not switched on.
    pub fn kprobe(kind: &str, place: &str, optimized: bool) -> io::Result<Self> {
        optimizer::allow(optimized)?;
        tracefs::append("kprobe_events", &format!("{kind}:{EVENT} {place}"))?;
        Ok(Self {
            place: (kind == "p").then(|| place.to_owned()),
            optimized,
            counted: Counted::Profile,
            on: false,
            seen: 0,
        })
    }

    /// A function probe at the entry or, with `%return`, at the return. It is registered and not
    /// switched on.
    pub fn fprobe(place: &str) -> io::Result<Self> {
        tracefs::append("dynamic_events", &format!("f:{EVENT} {place}"))?;
        tracefs::clear()?;
        Ok(Self {
            place: None,
            optimized: false,
            counted: Counted::Lines,
            on: false,
            seen: 0,
        })
    }
}

impl Tool for Event {
    fn on(&mut self) -> io::Result<()> {
        tracefs::write(&format!("events/{EVENT}/enable"), "1")?;
        self.on = true;
        if self.optimized {
            optimizer::settle()?;
        }
        Ok(())
    }

    fn off(&mut self) -> io::Result<()> {
        self.on = false;
        tracefs::write(&format!("events/{EVENT}/enable"), "0")
    }

    fn seen(&mut self, _: &Value) -> io::Result<u64> {
        if self.counted == Counted::Profile {
            let profile = tracefs::read("kprobe_profile")?;
            return match kprobe::counts(&profile, NAME) {
                Some((hits, 0)) => Ok(hits),
                Some((hits, missed)) => Err(io::Error::other(format!(
                    "the kernel has missed {missed} of its hits besides {hits}"
                ))),
                None => Err(io::Error::other("kprobe_profile doesn't have it")),
            };
        }
        let mark = format!(": {NAME}: ");
        let lines = tracefs::lines()?;
        self.seen += lines.iter().filter(|line| line.contains(&mark)).count() as u64;
        tracefs::clear()?;
        Ok(self.seen)
    }

    fn state(&self) -> io::Result<Value> {
        match &self.place {
            Some(place) => optimizer::listed(place).map(Value::String),
            None => Ok(Value::Null),
        }
    }

    fn go(&mut self) -> io::Result<()> {
        if self.on {
            self.off()?;
        }
        tracefs::append("dynamic_events", &format!("-:{EVENT}"))?;
        tracefs::clear()
    }
}

/// A kprobe that is always switched on. Here, off means that it is a breakpoint, and on that the
/// kernel may make it a jump.
pub struct Switched(Event);

impl Switched {
    pub fn new(place: &str) -> io::Result<Self> {
        let mut event = Event::kprobe("p", place, true)?;
        match event.on() {
            Ok(()) => Ok(Self(event)),
            Err(error) => {
                event.go()?;
                Err(error)
            }
        }
    }
}

impl Tool for Switched {
    fn on(&mut self) -> io::Result<()> {
        optimizer::allow(true)?;
        optimizer::settle()
    }

    fn off(&mut self) -> io::Result<()> {
        optimizer::allow(false)
    }

    fn seen(&mut self, done: &Value) -> io::Result<u64> {
        self.0.seen(done)
    }

    fn state(&self) -> io::Result<Value> {
        self.0.state()
    }

    fn go(&mut self) -> io::Result<()> {
        self.0.go()
    }
}
