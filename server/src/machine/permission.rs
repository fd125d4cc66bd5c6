//! Permissions that the server's owner gives.

use tonic::{Code, Status};

use super::Machine;
use crate::status;

impl Machine {
    /// Checks that clients may change the guest.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, with the field that asks for a change: the server's owner has not allowed it.
    pub(super) fn may_change_guest(&self, field: impl Into<String>) -> Result<(), Status> {
        if self.allow_changes {
            return Ok(());
        }
        Err(status::with_field(
            Code::FailedPrecondition,
            field,
            "this server only watches its guests. Setting registers, overriding functions and writing memory \
             change what a guest does: what a skipped function would have locked, counted or freed isn't, and a \
             wrong value may crash the guest or damage its data, at any time later. Start vmprobed with \
             --allow-changes to allow it",
        ))
    }
}
