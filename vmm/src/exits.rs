//! How often vCPUs left guest mode, and why.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns from `KVM_RUN` of all vCPUs of a VM since it was made. The counts are
/// read one after the other while the guest may go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// An int3.
    pub breakpoint: u64,
    /// A single step's end.
    pub step: u64,
    /// A debug register's match, and any other debug exception.
    pub hardware: u64,
    /// Port I/O.
    pub port_io: u64,
    /// An access to an address with no memory.
    pub mmio: u64,
    /// A signal, most of them to stop the vCPU, and the run that completes an
    /// operation before it stands still.
    pub interrupted: u64,
    /// Anything else.
    pub other: u64,
}

/// Why `KVM_RUN` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitKind {
    Breakpoint,
    Step,
    Hardware,
    PortIo,
    Mmio,
    Interrupted,
    Other,
}

/// Counters of exits, by their reason.
#[derive(Debug, Default)]
pub(crate) struct ExitCounters([AtomicU64; ExitKind::Other as usize + 1]);

impl ExitCounters {
    pub(crate) fn count(&self, kind: ExitKind) {
        self.0[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> ExitCounts {
        let [
            breakpoint,
            step,
            hardware,
            port_io,
            mmio,
            interrupted,
            other,
        ] = self.0.each_ref().map(|counter| counter.load(Relaxed));
        ExitCounts {
            breakpoint,
            step,
            hardware,
            port_io,
            mmio,
            interrupted,
            other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_name() {
        let counters = ExitCounters::default();
        for (times, kind) in [
            (1, ExitKind::Breakpoint),
            (2, ExitKind::Step),
            (3, ExitKind::Hardware),
            (4, ExitKind::PortIo),
            (5, ExitKind::Mmio),
            (6, ExitKind::Interrupted),
            (7, ExitKind::Other),
        ] {
            for _ in 0..times {
                counters.count(kind);
            }
        }
        let expected = ExitCounts {
            breakpoint: 1,
            step: 2,
            hardware: 3,
            port_io: 4,
            mmio: 5,
            interrupted: 6,
            other: 7,
        };
        assert_eq!(counters.get(), expected);
    }
}
