//! How a server that shuts down lets its clients read the rest of their streams.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a server waits for its clients.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long to wait until any client reads more.
    pub next: Duration,
    /// How long to wait for all clients, however slowly they read.
    pub all: Duration,
}

/// The number of bytes that clients have taken, of all connections together. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Written(Arc<AtomicU64>);

impl Written {
    /// Adds bytes that have been written.
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the number of bytes so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Waits until all connections have ended, or until no client reads any more.
///
/// # Errors
/// The errors of `serving`.
pub async fn drain<E>(
    serving: impl Future<Output = Result<(), E>>,
    patience: Patience,
    written: impl Fn() -> u64,
) -> Result<(), E> {
    let mut serving = pin!(serving);
    let begun = Instant::now();
    loop {
        let before = written();
        if let Ok(served) = tokio::time::timeout(patience.next, &mut serving).await {
            return served;
        }
        if written() == before || begun.elapsed() >= patience.all {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Drains a server that never ends, while clients read `steps` times. Returns how often it looked at what they have
    /// read.
    async fn asked(all: Duration, steps: u64) -> u64 {
        let asked = Cell::new(0);
        let written = || {
            asked.set(asked.get() + 1);
            asked.get().min(steps)
        };
        let next = Duration::ZERO;
        let ended = drain(pending::<Result<(), ()>>(), Patience { next, all }, written).await;
        assert_eq!(ended, Ok(()));
        asked.get()
    }

    #[tokio::test]
    async fn clients_are_waited_for_while_they_read_and_not_for_ever() {
        assert_eq!(asked(HOUR, 1).await, 2);
        assert_eq!(asked(HOUR, 9).await, 10);
        assert_eq!(asked(Duration::ZERO, 9).await, 2);
    }

    #[tokio::test]
    async fn what_ends_by_itself_is_not_waited_for() {
        let patience = Patience {
            next: HOUR,
            all: HOUR,
        };
        let written = Written::default();
        written.add(3);
        let ended = drain(ready(Err::<(), _>("broken")), patience, || written.bytes()).await;
        assert_eq!(ended, Err("broken"));
    }
}
