//! Through what a device ends the guest.

use std::sync::Arc;

use crate::{
    devices::console::Console,
    ending::{EndSignal, Ending},
};

/// Ends the guest in the name of a device. What the console shows of a panic is the reason then.
#[derive(Clone)]
pub(crate) struct GuestEnd {
    console: Arc<Console>,
    signal: Arc<EndSignal>,
}

impl GuestEnd {
    pub(crate) fn new(console: Arc<Console>, signal: Arc<EndSignal>) -> Self {
        Self { console, signal }
    }

    /// The guest has switched itself off.
    pub(crate) fn power_off(&self) {
        self.signal.end(Ending::PowerOff);
    }

    /// The guest asks for a reset. A kernel told to restart after a panic has panicked.
    pub(crate) fn reset(&self) {
        if self.console.saw_panic() {
            self.panic();
        } else {
            self.signal.end(Ending::Reset);
        }
    }

    /// The guest's kernel says that it has panicked.
    pub(crate) fn panic(&self) {
        let reason = self.console.panic_reason();
        self.signal.end(Ending::Panic { reason });
    }

    /// Ends the guest if the console has the whole report of a panic.
    pub(crate) fn end_after_reported_panic(&self) {
        if let Some(reason) = self.console.finished_panic() {
            self.signal.end(Ending::Panic { reason });
        }
    }
}
