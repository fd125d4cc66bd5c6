//! Input that waits for the guest.

use std::{collections::VecDeque, io, sync::Arc};

use parking_lot::Mutex;
use vmm_sys_util::eventfd::EventFd;

use crate::devices::console::ConsoleInput;

/// Input that may wait for the guest to take it, in bytes.
pub(super) const LIMIT: usize = 1 << 20;

/// What was typed and not yet taken by the guest. All copies are of the same bytes.
#[derive(Clone)]
pub(super) struct Input(Arc<Shared>);

struct Shared {
    bytes: Mutex<VecDeque<u8>>,
    /// Signalled when there are more.
    more: EventFd,
}

impl Input {
    /// No input.
    ///
    /// # Errors
    /// The host has no more files.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            bytes: Mutex::default(),
            more: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
        })))
    }

    /// The file that becomes readable when there is more, or after [`wake`](Self::wake).
    pub(super) fn file(&self) -> &EventFd {
        &self.0.more
    }

    /// Makes [`file`](Self::file) readable.
    pub(super) fn wake(&self) {
        if let Err(error) = self.0.more.write(1) {
            tracing::error!("the thread of a console can't be woken: {error}");
        }
    }

    /// Makes [`file`](Self::file) unreadable.
    pub(super) fn woken(&self) {
        let _there_may_be_none = self.0.more.read();
    }

    /// Returns true if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.bytes.lock().is_empty()
    }

    /// Takes as many bytes as there are and `room` has place for. Returns how many these are.
    pub(super) fn take(&self, room: &mut [u8]) -> usize {
        let mut bytes = self.0.bytes.lock();
        let len = room.len().min(bytes.len());
        for (place, byte) in room.iter_mut().zip(bytes.drain(..len)) {
            *place = byte;
        }
        len
    }
}

impl ConsoleInput for Input {
    fn send(&self, bytes: &[u8]) -> usize {
        let len = {
            let mut waiting = self.0.bytes.lock();
            let len = bytes.len().min(LIMIT - waiting.len());
            waiting.extend(&bytes[..len]);
            len
        };
        self.wake();
        len
    }
}
