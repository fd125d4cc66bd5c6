//! The end of the tasks that send.

use std::time::Duration;

use tokio::sync::oneshot;

/// How long what is left may take to be sent when the server ends.
pub const FLUSH: Duration = Duration::from_secs(5);

/// A task that sends.
#[derive(Debug)]
pub struct Task {
    stop: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

/// Its other end, in the task.
#[derive(Debug)]
pub struct Stop {
    pub stop: oneshot::Receiver<()>,
    // Dropped with the task.
    _done: oneshot::Sender<()>,
}

impl Task {
    /// Both ends.
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

    /// Has the task end; returns when it has.
    pub async fn end(self) {
        // Fails when it has ended.
        let _ = self.stop.send(());
        let _ = self.done.await;
    }
}
