//! Room on the disk that is set aside.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use super::ImageStore;
use crate::access::Account;

/// Bytes of an account's, and the server's, that an upload under way or a private copy takes, until this is dropped.
pub struct Room {
    pub(super) store: Arc<ImageStore>,
    pub(super) account: Account,
    pub(super) bytes: u64,
}

impl Debug for Room {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.store.give_back(&self.account, self.bytes);
    }
}
