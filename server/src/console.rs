//! A guest's console for asynchronous readers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use vmm::{Console, ConsoleChunk, ConsoleSubscription};

/// A guest writes byte by byte, so a woken reader waits this long for more of a line.
const GATHER: Duration = Duration::from_millis(2);

/// Reads what a guest has written, as far as it is kept, and then new output, up to the guest's
/// end.
pub struct ConsoleReader {
    console: Arc<Console>,
    changed: watch::Receiver<()>,
    at: u64,
    _subscription: ConsoleSubscription,
}

impl ConsoleReader {
    /// Makes a reader that begins with the oldest byte that is kept.
    pub fn new(console: &Arc<Console>) -> Self {
        let (tell, changed) = watch::channel(());
        let subscription = console.subscribe(move || {
            tell.send_replace(());
        });
        Self {
            console: Arc::clone(console),
            changed,
            at: 0,
            _subscription: subscription,
        }
    }

    /// Returns the next output, or `None` when the guest has ended and all is read.
    pub async fn next(&mut self) -> Option<ConsoleChunk> {
        loop {
            self.changed.mark_unchanged();
            let chunk = self.console.read(self.at);
            if !chunk.bytes.is_empty() {
                self.at = chunk.next;
                return Some(chunk);
            }
            if chunk.last {
                return None;
            }
            // This fails only if the subscription is dropped, and this reader holds it.
            let _ = self.changed.changed().await;
            tokio::time::sleep(GATHER).await;
        }
    }
}
