//! A module of the kernel's own package.

use std::io;

use serde_json::Value;

use super::Tool;
use crate::workload::module;

/// A module by its name. It counts the calls that its device answers.
pub struct Module {
    name: String,
    path: String,
    on: bool,
    seen: u64,
}

impl Module {
    pub fn new(name: &str) -> io::Result<Self> {
        Ok(Self {
            name: name.into(),
            path: module::file(name)?,
            on: false,
            seen: 0,
        })
    }
}

impl Tool for Module {
    fn on(&mut self) -> io::Result<()> {
        module::load(&self.path)?;
        self.on = true;
        Ok(())
    }

    fn off(&mut self) -> io::Result<()> {
        self.on = false;
        module::unload(&self.name)
    }

    fn seen(&mut self, done: &Value) -> io::Result<u64> {
        if done["answer"] == 0 {
            self.seen += done["calls"].as_u64().unwrap_or_default();
        }
        Ok(self.seen)
    }

    fn go(&mut self) -> io::Result<()> {
        if self.on { self.off() } else { Ok(()) }
    }
}
