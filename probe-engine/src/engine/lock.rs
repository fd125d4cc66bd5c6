//! Locks that are taken in one order.

use std::fmt;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// The locks of an engine, in the order in which a thread that needs several takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// What the optimizer knows of the kernel's text; held while jumps are prepared.
    Optimizer,
    /// The probes by number and name; held during a change of probes.
    Registry,
    /// The rings, and whose their records are.
    Reader,
    /// Code of ours in the guest.
    Arena,
    /// Breakpoints that have just gone.
    Departed,
    /// Calls that breakpoints follow.
    Returns,
    /// Calls that are followed to the function's own returns.
    Exits,
    /// Steps under way.
    Steps,
    /// What is known of the guest's modules.
    KnownModules,
    /// The kernel's page tables, as last seen.
    PageTables,
    /// Places in the table of calls whose probes have gone.
    Orphans,
    /// Which event is next.
    Order,
    /// Events that are held back.
    Held,
    /// The attendants, and the vCPUs that wait for their answers.
    Attendants,
    /// The debugger of the guest.
    Debugger,
    /// The instructions that sites share.
    SharedWays,
}

/// A lock with its place in the order. A build with debug assertions checks that each thread keeps to it, so
/// that no two threads wait for each other.
pub(crate) struct Lock<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// A lock that is held.
pub(crate) struct Guard<'l, T> {
    rank: Rank,
    inner: MutexGuard<'l, T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self {
            rank,
            inner: Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        held::begin(self.rank);
        Guard {
            rank: self.rank,
            inner: self.inner.lock(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        held::end(self.rank);
    }
}

/// The locks that this thread holds. Of several engines in one thread one at a time is at work.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn begin(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            let later = held.iter().find(|other| **other >= rank);
            assert!(later.is_none(), "{rank:?} is locked after {later:?}");
            held.push(rank);
        });
    }

    pub(super) fn end(rank: Rank) {
        HELD.with_borrow_mut(|held| held.retain(|other| *other != rank));
    }
}

#[cfg(not(debug_assertions))]
mod held {
    pub(super) fn begin(_: super::Rank) {}

    pub(super) fn end(_: super::Rank) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_order_and_given_back_in_any() {
        let (first, second) = (Lock::new(Rank::Registry, 1), Lock::new(Rank::Arena, 2));
        let (one, two) = (first.lock(), second.lock());
        drop(one);
        assert_eq!(*two, 2);
        drop(two);
        assert_eq!(*first.lock(), 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Registry is locked after Some(Arena)")]
    fn a_lock_that_comes_too_late_is_noticed() {
        let (first, second) = (Lock::new(Rank::Registry, 1), Lock::new(Rank::Arena, 2));
        let _two = second.lock();
        let _one = first.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Arena is locked after Some(Arena)")]
    fn a_lock_that_its_thread_holds_is_noticed() {
        let lock = Lock::new(Rank::Arena, 2);
        let _one = lock.lock();
        let _again = lock.lock();
    }
}
