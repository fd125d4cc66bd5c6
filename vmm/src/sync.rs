//! Locks that outlive a panic of another thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks without regard to poison: all state under these locks is valid
/// between any two statements, and one thread's panic must not take down the
/// rest.
pub(crate) trait LockExt<T> {
    /// As `Mutex::lock`, poisoned or not.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
