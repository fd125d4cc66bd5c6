//! Tools that write lines to the trace buffer, by which their calls are counted.

use std::io;

use serde_json::Value;

use super::Tool;
use crate::workload::{ftrace, tracefs};

/// The function tracer or the function graph tracer on one function.
pub struct Tracer {
    name: String,
    function: String,
    seen: u64,
    on: bool,
}

impl Tracer {
    /// `name` is one of `available_tracers`.
    pub fn new(name: &str, function: &str) -> Self {
        Self {
            name: name.into(),
            function: function.into(),
            seen: 0,
            on: false,
        }
    }
}

impl Tool for Tracer {
    fn on(&mut self) -> io::Result<()> {
        tracefs::write("set_ftrace_filter", &self.function)?;
        tracefs::clear()?;
        tracefs::write("current_tracer", &self.name)?;
        self.on = true;
        Ok(())
    }

    fn off(&mut self) -> io::Result<()> {
        // Choosing another tracer empties the buffer.
        self.seen(&Value::Null)?;
        self.on = false;
        tracefs::write("current_tracer", "nop")
    }

    fn seen(&mut self, _: &Value) -> io::Result<u64> {
        if self.on {
            let lines = tracefs::lines()?;
            let calls = lines
                .iter()
                .filter(|line| ftrace::is_call(line, &self.function));
            self.seen += calls.count() as u64;
            tracefs::clear()?;
        }
        Ok(self.seen)
    }

    fn go(&mut self) -> io::Result<()> {
        if self.on {
            self.off()?;
        }
        tracefs::write("set_ftrace_filter", "")
    }
}

/// A trace event of the kernel's own, `SYSTEM/NAME`, about names of threads; only for the name that
/// the system call `rename` sets.
pub struct StaticEvent {
    event: String,
    seen: u64,
}

impl StaticEvent {
    pub fn new(event: &str) -> Self {
        Self {
            event: event.into(),
            seen: 0,
        }
    }

    fn switch(&self, to: &str) -> io::Result<()> {
        tracefs::write(&format!("events/{}/enable", self.event), to)
    }
}

impl Tool for StaticEvent {
    fn on(&mut self) -> io::Result<()> {
        tracefs::clear()?;
        // The names of kernel threads make events, too.
        tracefs::write(
            &format!("events/{}/filter", self.event),
            "newcomm == \"guest\"",
        )?;
        self.switch("1")
    }

    fn off(&mut self) -> io::Result<()> {
        self.switch("0")
    }

    fn seen(&mut self, _: &Value) -> io::Result<u64> {
        let name = self.event.rsplit('/').next().unwrap_or_default();
        let mark = format!(": {name}: ");
        let lines = tracefs::lines()?;
        self.seen += lines.iter().filter(|line| line.contains(&mark)).count() as u64;
        tracefs::clear()?;
        Ok(self.seen)
    }

    fn go(&mut self) -> io::Result<()> {
        self.switch("0")
    }
}
