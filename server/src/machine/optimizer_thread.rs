//! How the optimizer's thread learns of changes, and what it has done.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use vmprobe_proto::v1;

use super::bell::Bell;

/// The shared state of one VM's optimizer thread.
#[derive(Debug)]
pub struct OptimizerThread {
    pub(super) bell: Arc<Bell>,
    done: Mutex<v1::Optimizer>,
    /// Gets a message whenever probes may have settled.
    pub(super) settled: watch::Sender<()>,
}

impl Default for OptimizerThread {
    fn default() -> Self {
        Self {
            bell: Arc::default(),
            done: Mutex::default(),
            settled: watch::channel(()).0,
        }
    }
}

impl OptimizerThread {
    /// Returns what the optimizer has done so far.
    pub fn done(&self) -> v1::Optimizer {
        *self.done.lock()
    }

    /// Tells the optimizer that probes have been changed.
    pub fn probes_changed(&self) {
        self.bell.ring();
        self.settled.send_replace(());
    }

    /// Tells the optimizer that the guest has ended.
    pub fn end(&self) {
        self.bell.end();
    }

    pub(super) fn add(&self, probes: u64, stopped_ns: u64) {
        let mut done = self.done.lock();
        done.batches += 1;
        done.probes += probes;
        done.stopped_ns = done.stopped_ns.saturating_add(stopped_ns);
        (done.last_probes, done.last_stopped_ns) = (probes, stopped_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_added_up_and_the_last_is_told() {
        let optimizer = OptimizerThread::default();
        optimizer.add(1000, 5);
        optimizer.add(2, u64::MAX);
        let done = optimizer.done();
        assert_eq!((done.batches, done.probes), (2, 1002));
        assert_eq!((done.last_probes, done.last_stopped_ns), (2, u64::MAX));
        assert_eq!(done.stopped_ns, u64::MAX);
    }

    #[test]
    fn a_change_wakes_whoever_waits_for_probes() {
        let optimizer = OptimizerThread::default();
        let mut settled = optimizer.settled.subscribe();
        settled.borrow_and_update();
        assert!(!settled.has_changed().unwrap());
        optimizer.probes_changed();
        assert!(settled.has_changed().unwrap());
    }
}
