//! Work that may block, on other threads than those that serve all calls.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, spawn_blocking};
use tonic::Status;

use crate::status;

/// Runs work that may block on another thread, so that no other call waits for it. If this is dropped, work that has
/// begun goes on to its end, and work that waits for a thread never begins.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` if the host has no thread, and the errors of the work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let work = Arc::new(Mutex::new(Some(work)));
    let handed = Arc::clone(&work);
    let run = move || {
        let work = handed.lock().take();
        work.map_or_else(|| Err(no_thread()), |work| work())
    };
    // If it can't start its first thread, the runtime panics, and keeps the work for the next thread that it can start.
    let Ok(task) = catch_unwind(AssertUnwindSafe(|| spawn_blocking(run))) else {
        // Refused work must not be done later.
        let _if_no_thread_has_it_by_now = work.lock().take();
        return Err(no_thread());
    };
    let _given_up_with_this = AbortOnDrop(task.abort_handle());
    task.await.map_err(|error| status::cut_off(&error))?
}

fn no_thread() -> Status {
    status::no_thread(&io::ErrorKind::OutOfMemory.into())
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn work_that_waits_for_a_thread_is_not_begun_when_nobody_wants_it_any_more() {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        let ran = runtime.block_on(async {
            let (go_on, wait) = channel::<()>();
            let first = tokio::spawn(blocking(move || {
                // Waits until the other work was given up.
                let _dropped = wait.recv();
                Ok(())
            }));
            tokio::task::yield_now().await;
            let (tell, told) = channel();
            let second = tokio::spawn(blocking(move || {
                tell.send(()).unwrap();
                Ok(())
            }));
            tokio::task::yield_now().await;
            second.abort();
            assert!(second.await.unwrap_err().is_cancelled());
            drop(go_on);
            first.await.unwrap().unwrap();
            // The only thread has done the work that waited before this.
            blocking(|| Ok(())).await.unwrap();
            told.try_recv()
        });
        assert!(ran.is_err(), "work was begun that nobody wanted");
    }
}
