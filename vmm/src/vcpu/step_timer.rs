//! A limit on how long a step may take.
//!
//! An instruction that raises an exception of its own (#GP, #DE, #UD) runs the
//! guest's handler instead of ending the step. Where that isn't noticed at the
//! handler's first instruction the step has no end, and after a step alone the
//! handler may even wait for a vCPU that stands still. The timer's signal is a
//! kick to this thread.

use std::{
    io, mem, ptr,
    time::{Duration, Instant},
};

use super::kick;

/// Far above what one instruction takes, also on an emulated CPU whose host is
/// busy.
const LIMIT: Duration = Duration::from_millis(500);

/// A timer of the calling thread.
pub(super) struct StepTimer {
    id: libc::timer_t,
    armed: Option<Instant>,
}

// SAFETY: a POSIX timer belongs to the process; its id may be used on any thread.
unsafe impl Send for StepTimer {}

impl StepTimer {
    /// A timer that kicks the calling thread.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: all zeros is a valid value of this C structure.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick::signal();
        // SAFETY: gettid has no conditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut id = ptr::null_mut();
        // SAFETY: both pointers are to live values of the right types.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut id) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { id, armed: None })
    }

    /// Times a step that begins now: kicks after the limit, again and again, until
    /// [`disarm`](Self::disarm).
    pub(super) fn arm(&mut self) {
        self.armed = Some(Instant::now());
        self.set(LIMIT);
    }

    pub(super) fn disarm(&mut self) {
        self.armed = None;
        self.set(Duration::ZERO);
    }

    /// Returns true if the step under way has taken as long as the limit.
    pub(super) fn expired(&self) -> bool {
        self.armed.is_some_and(|since| since.elapsed() >= LIMIT)
    }

    fn set(&self, period: Duration) {
        let time = libc::timespec {
            tv_sec: period.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(period.subsec_nanos() as i32),
        };
        let time = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        // SAFETY: the timer exists until it is dropped; a null pointer asks for no old
        // value. It can't fail for a valid timer and time.
        unsafe { libc::timer_settime(self.id, 0, &time, ptr::null_mut()) };
    }
}

impl Drop for StepTimer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and isn't used after this.
        unsafe { libc::timer_delete(self.id) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_not_armed_never_expires() {
        let mut timer = StepTimer::new().unwrap();
        assert!(!timer.expired());
        timer.arm();
        timer.disarm();
        assert!(!timer.expired());
    }
}
