//! How a guest's run ends.

use std::{fmt, sync::OnceLock};

use parking_lot::{Condvar, Mutex};

/// Why a guest stopped for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest switched itself off (ACPI S5).
    PowerOff,
    /// The guest asked for a reset. The monitor does not start it again.
    Reset,
    /// The guest's kernel panicked, and told so by pvpanic or on the console.
    Panic {
        /// What the console said after "Kernel panic - not syncing: ".
        reason: String,
    },
    /// A vCPU faulted in delivering a double fault (SDM vol. 3, 6.15), or the
    /// guest reset itself that way.
    TripleFault,
    /// The monitor was told to end it.
    Killed,
    /// KVM or the monitor could not go on.
    Failed {
        /// What happened to which vCPU, and what to do.
        reason: String,
    },
}

impl Ending {
    /// Exit code of a process that ran this guest: 0 only for a power-off.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::PowerOff => 0,
            Self::Reset => 3,
            Self::Panic { .. } => 4,
            Self::TripleFault => 5,
            Self::Killed => 6,
            Self::Failed { .. } => 7,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => f.write_str("powered off"),
            Self::Reset => f.write_str("reset"),
            Self::Panic { reason } => write!(f, "kernel panic: {reason}"),
            Self::TripleFault => f.write_str("triple fault"),
            Self::Killed => f.write_str("killed"),
            Self::Failed { reason } => write!(f, "failed: {reason}"),
        }
    }
}

/// The function that is called once, when the guest ends.
type OnEnd = Box<dyn Fn() + Send + Sync>;

/// The first ending of a guest. Threads can wait for it.
#[derive(Default)]
pub(crate) struct EndSignal {
    ending: Mutex<Option<Ending>>,
    known: Condvar,
    on_end: OnceLock<OnEnd>,
}

impl fmt::Debug for EndSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EndSignal").field(&self.get()).finish()
    }
}

impl EndSignal {
    /// Sets what is called, on the thread that ends the guest, when it ends.
    pub(crate) fn on_end(&self, call: impl Fn() + Send + Sync + 'static) {
        let _set_once = self.on_end.set(Box::new(call));
    }

    /// Ends the guest; only the first ending counts.
    pub(crate) fn end(&self, ending: Ending) {
        let mut slot = self.ending.lock();
        if slot.is_some() {
            return;
        }
        *slot = Some(ending);
        drop(slot);
        self.known.notify_all();
        if let Some(call) = self.on_end.get() {
            call();
        }
    }

    pub(crate) fn get(&self) -> Option<Ending> {
        self.ending.lock().clone()
    }

    /// Waits for the guest's end.
    pub(crate) fn wait(&self) -> Ending {
        let mut slot = self.ending.lock();
        loop {
            if let Some(ending) = &*slot {
                return ending.clone();
            }
            self.known.wait(&mut slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ending_counts() {
        let signal = EndSignal::default();
        signal.end(Ending::Reset);
        signal.end(Ending::PowerOff);
        assert_eq!(signal.wait(), Ending::Reset);
    }
}
