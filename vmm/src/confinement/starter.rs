//! The thread that starts the others.

use std::{
    io,
    sync::mpsc::{Sender, channel},
    thread::{self, ThreadId},
};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does the work that other threads give it, one piece after the other, until this is
/// dropped.
pub(super) struct Starter {
    jobs: Sender<Job>,
    thread: ThreadId,
}

impl Starter {
    /// Starts it.
    ///
    /// # Errors
    /// The host has no thread.
    pub(super) fn new() -> io::Result<Self> {
        let (jobs, asked) = channel::<Job>();
        let thread = thread::Builder::new()
            .name("starter".to_owned())
            .spawn(move || asked.into_iter().for_each(|job| job()))?;
        Ok(Self {
            jobs,
            thread: thread.thread().id(),
        })
    }

    /// Runs `work` there, and waits for it. Work that runs there may call this, too.
    ///
    /// # Errors
    /// The thread has ended: `work`, or work before it, has panicked.
    pub(super) fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> io::Result<R> {
        if thread::current().id() == self.thread {
            return Ok(work());
        }
        let ended = || io::Error::other("the thread that starts others has ended");
        let (result, done) = channel();
        let job = move || {
            let _whoever_waits_has_gone_with_its_thread = result.send(work());
        };
        self.jobs.send(Box::new(job)).map_err(|_| ended())?;
        done.recv().map_err(|_| ended())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn work_runs_there_and_may_ask_for_more() {
        let starter = Arc::new(Starter::new().unwrap());
        let there = Arc::clone(&starter);
        let (first, second) = starter
            .run(move || {
                let own = thread::current().id();
                (own, there.run(|| thread::current().id()).unwrap())
            })
            .unwrap();
        assert_eq!((first, second), (starter.thread, starter.thread));
    }

    #[test]
    fn work_that_panics_ends_it_and_later_work_is_refused() {
        let starter = Starter::new().unwrap();
        assert!(starter.run(|| panic!("as the test wants it")).is_err());
        assert!(starter.run(|| ()).is_err());
    }
}
