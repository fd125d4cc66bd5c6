//! Work that may block, beside the threads that serve all calls.

use tonic::Status;

use crate::status;

/// Runs what may block on a thread of its own, so that no other call waits for it.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| status::cut_off(&error))?
}
