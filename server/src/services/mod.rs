//! One file for each gRPC service.

mod console;
mod event;
mod host;
mod probe;
mod symbol;
mod vm;

pub use console::Console;
pub use event::Events;
pub use host::Host;
pub use probe::Probes;
pub use symbol::Symbols;
pub use vm::Vms;

use tonic::Status;

use crate::status;

/// Runs what may block on a thread of its own, so that no other call waits for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| status::cut_off(&error))?
}
