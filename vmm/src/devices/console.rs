//! What the guest wrote to its serial port and its virtio console, kept for readers.

use std::{
    collections::VecDeque,
    fmt, io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};

/// Output that is kept for later readers, in bytes.
const HISTORY: usize = 1 << 20;

/// What Linux prints when it panics (kernel/panic.c), and at the end of it.
const PANIC: &str = "Kernel panic - not syncing: ";
const PANIC_END: &str = "---[ end Kernel panic - not syncing: ";
/// Longest line that is searched for these.
const LINE_LIMIT: usize = 512;

/// The output of a guest's consoles, in one stream.
#[derive(Default)]
pub struct Console {
    state: Mutex<State>,
    changed: Condvar,
    listeners: Mutex<Vec<(u64, Listener)>>,
    next_listener: AtomicU64,
    input: Mutex<Option<Box<dyn ConsoleInput>>>,
}

/// Where input to the console goes.
pub(crate) trait ConsoleInput: Send {
    /// Queues input for the guest. Returns how many bytes there was room for.
    fn send(&self, bytes: &[u8]) -> usize;
}

type Listener = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct State {
    history: VecDeque<u8>,
    /// Offset of the first byte in `history` since the guest's start.
    first: u64,
    closed: bool,
    line: Vec<u8>,
    panic: Option<String>,
    panic_finished: bool,
}

/// A piece of the console's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleChunk {
    /// The bytes, empty when there are none yet.
    pub bytes: Vec<u8>,
    /// Bytes between the offset asked for and these that are no longer kept.
    pub dropped: u64,
    /// Offset to ask for next.
    pub next: u64,
    /// The guest has ended: there is nothing after these bytes.
    pub last: bool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Console")
    }
}

impl Console {
    /// Output from `offset` on (bytes since the guest's start), as far as there is any.
    /// Never waits.
    pub fn read(&self, offset: u64) -> ConsoleChunk {
        self.state.lock().chunk(offset)
    }

    /// As [`read`](Self::read), but waits until there is output or the guest
    /// has ended.
    pub fn wait(&self, offset: u64) -> ConsoleChunk {
        let mut state = self.state.lock();
        loop {
            let chunk = state.chunk(offset);
            if !chunk.bytes.is_empty() || chunk.last {
                return chunk;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Calls `listener` after each new output and at the end, on the thread
    /// that made it: it must be quick and never block. Ends with the returned
    /// subscription.
    pub fn subscribe(
        self: &Arc<Self>,
        listener: impl Fn() + Send + Sync + 'static,
    ) -> ConsoleSubscription {
        let id = self.next_listener.fetch_add(1, Ordering::Relaxed);
        self.listeners.lock().push((id, Arc::new(listener)));
        ConsoleSubscription {
            id,
            console: Arc::downgrade(self),
        }
    }

    /// Input for the guest. Returns how many bytes were taken: fewer than given
    /// only when the guest has left a MiB unread.
    pub fn send(&self, bytes: &[u8]) -> usize {
        self.input
            .lock()
            .as_ref()
            .map_or(0, |input| input.send(bytes))
    }

    pub(crate) fn connect_input(&self, input: impl ConsoleInput + 'static) {
        *self.input.lock() = Some(Box::new(input));
    }

    /// Tells readers that no more output comes.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.notify();
    }

    fn push(&self, bytes: &[u8]) {
        self.state.lock().push(bytes);
        self.notify();
    }

    fn notify(&self) {
        self.changed.notify_all();
        let listeners: Vec<Listener> = self
            .listeners
            .lock()
            .iter()
            .map(|(_, l)| Arc::clone(l))
            .collect();
        for listener in listeners {
            listener();
        }
    }

    /// Returns true if the guest has printed that it panicked.
    pub(crate) fn saw_panic(&self) -> bool {
        self.state.lock().panic.is_some()
    }

    /// The reason of a panic whose report is complete. The kernel does nothing more
    /// after it.
    pub(crate) fn finished_panic(&self) -> Option<String> {
        let state = self.state.lock();
        if state.panic_finished {
            state.panic.clone()
        } else {
            None
        }
    }

    /// The reason that the guest printed for its panic.
    pub(crate) fn panic_reason(&self) -> String {
        self.state
            .lock()
            .panic
            .clone()
            .unwrap_or_else(|| "no reason on the console".to_owned())
    }
}

impl State {
    fn chunk(&self, offset: u64) -> ConsoleChunk {
        let end = self.first + self.history.len() as u64;
        let from = offset.clamp(self.first, end);
        ConsoleChunk {
            bytes: self
                .history
                .range((from - self.first) as usize..)
                .copied()
                .collect(),
            dropped: from.saturating_sub(offset),
            next: end,
            last: self.closed,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.history.extend(bytes);
        let excess = self.history.len().saturating_sub(HISTORY);
        self.history.drain(..excess);
        self.first += excess as u64;
        for &byte in bytes {
            if byte == b'\n' {
                self.end_of_line();
            } else if self.line.len() < LINE_LIMIT {
                self.line.push(byte);
            }
        }
    }

    fn end_of_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = without_timestamp(text.trim_end());
        if let Some(reason) = text.strip_prefix(PANIC) {
            self.panic.get_or_insert_with(|| reason.to_owned());
        } else if text.starts_with(PANIC_END) && self.panic.is_some() {
            self.panic_finished = true;
        }
    }
}

/// A line of the kernel's log without its "[    1.234567] ".
fn without_timestamp(line: &str) -> &str {
    let stamped = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "));
    match stamped {
        Some((stamp, text)) if stamp.chars().all(|c| matches!(c, '0'..='9' | '.' | ' ')) => text,
        _ => line,
    }
}

/// Ends a subscription to a console when it is dropped.
pub struct ConsoleSubscription {
    id: u64,
    console: Weak<Console>,
}

impl Drop for ConsoleSubscription {
    fn drop(&mut self) {
        if let Some(console) = self.console.upgrade() {
            console.listeners.lock().retain(|(id, _)| *id != self.id);
        }
    }
}

/// A device's side of the console.
pub(crate) struct ConsoleWriter {
    console: Arc<Console>,
}

impl ConsoleWriter {
    pub(crate) fn new(console: &Arc<Console>) -> Self {
        Self {
            console: Arc::clone(console),
        }
    }
}

impl io::Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.console.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_what_is_new_and_is_told_what_is_no_longer_kept() {
        let console = Console::default();
        console.push(b"abc");
        let chunk = console.read(1);
        assert_eq!(
            (chunk.bytes.as_slice(), chunk.next, chunk.last),
            (&b"bc"[..], 3, false)
        );
        console.push(&vec![b'x'; HISTORY]);
        let chunk = console.read(1);
        assert_eq!((chunk.dropped, chunk.bytes.len()), (2, HISTORY));
        console.close();
        let end = console.read(chunk.next);
        assert!(end.last && end.bytes.is_empty());
    }

    #[test]
    fn a_panic_is_known_by_the_kernels_own_lines_only() {
        let cases: [(&str, Option<&str>, bool); 5] = [
            (
                "[    1.5] Kernel panic - not syncing: VFS: x\n",
                Some("VFS: x"),
                false,
            ),
            (
                "Kernel panic - not syncing: A\r\n[   12.0] ---[ end Kernel panic - not syncing: A ]---\n",
                Some("A"),
                true,
            ),
            ("root said: Kernel panic - not syncing: no\n", None, false),
            ("[ x ] Kernel panic - not syncing: no\n", None, false),
            ("Kernel panic - not syncing: unfinished", None, false),
        ];
        for (output, reason, finished) in cases {
            let console = Console::default();
            console.push(output.as_bytes());
            assert_eq!(console.saw_panic(), reason.is_some(), "{output}");
            assert_eq!(
                console.finished_panic().as_deref(),
                reason.filter(|_| finished)
            );
        }
    }

    #[test]
    fn a_dropped_subscription_is_not_called_again() {
        let console = Arc::new(Console::default());
        let calls = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&calls);
        let subscription = console.subscribe(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        console.push(b"a");
        drop(subscription);
        console.push(b"b");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
