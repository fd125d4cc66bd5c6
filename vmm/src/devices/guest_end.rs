//! Through what a device ends the guest.

use std::sync::Arc;

use crate::{
    devices::console::Console,
    ending::{EndSignal, Ending},
};

/// Ends the guest for a device. The reason of a panic is what the console shows of it.
#[derive(Clone)]
pub(crate) struct GuestEnd {
    console: Arc<Console>,
    signal: Arc<EndSignal>,
}

impl GuestEnd {
    pub(crate) fn new(console: Arc<Console>, signal: Arc<EndSignal>) -> Self {
        Self { console, signal }
    }

    /// Ends the guest, which has switched itself off.
    pub(crate) fn power_off(&self) {
        self.signal.end(Ending::PowerOff);
    }

    /// Ends the guest, which asks for a reset: by a panic if the console has shown one, as a kernel
    /// may be told to restart after a panic.
    pub(crate) fn reset(&self) {
        if self.console.saw_panic() {
            self.panic();
        } else {
            self.signal.end(Ending::Reset);
        }
    }

    /// Ends the guest, whose kernel says that it has panicked.
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
