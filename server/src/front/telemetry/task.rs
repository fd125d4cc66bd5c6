//! Ending the tasks that send.

use std::time::Duration;

use tokio::sync::oneshot;

/// How long sending the rest may take when the server ends.
pub const FLUSH: Duration = Duration::from_secs(5);

/// A task that sends.
#[derive(Debug)]
pub struct Task {
    stop: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

/// The task's own end of a [`Task`].
#[derive(Debug)]
pub struct Stop {
    pub stop: oneshot::Receiver<()>,
    // Dropped with the task, which completes `done`.
    _done: oneshot::Sender<()>,
}

impl Task {
    /// Makes both ends.
    pub fn new() -> (Self, Stop) {
        let (stop, stopped) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let task = Self { stop, done: ended };
        let other = Stop {
            stop: stopped,
            _done: done,
        };
        (task, other)
    }

    /// Makes the task end, and returns when it has ended.
    pub async fn end(self) {
        // This fails if the task has ended.
        let _ = self.stop.send(());
        let _ = self.done.await;
    }
}
