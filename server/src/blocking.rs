//! Work that may block, beside the threads that serve all calls.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Status;

use crate::status;

/// Runs what may block on a thread of its own, so that no other call waits for it.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` if there is no thread to be had, and those of the work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let work = Arc::new(Mutex::new(Some(work)));
    let handed = Arc::clone(&work);
    let run = move || {
        let work = handed.lock().take();
        work.map_or_else(|| Err(no_thread()), |work| work())
    };
    // Without a single thread the runtime panics, and keeps what it was given for the next one that it can start.
    match catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_blocking(run))) {
        Ok(running) => running.await.map_err(|error| status::cut_off(&error))?,
        Err(_) => {
            // Nothing of what is refused is done later.
            let _if_no_thread_has_it_by_now = work.lock().take();
            Err(no_thread())
        }
    }
}

fn no_thread() -> Status {
    status::no_thread(&io::ErrorKind::OutOfMemory.into())
}
