//! How a thread sleeps until there is work for it.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Wakes one thread. If no thread waits, a ring is kept for the next wait.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rung: bool,
    ended: bool,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The bell was rung since the last wait.
    Ring,
    /// The bell wasn't rung before the time was over.
    Nothing,
    /// There will be no more work, now and at every later wait.
    End,
}

impl Bell {
    /// Tells the thread that there is work.
    pub fn ring(&self) {
        self.state.lock().rung = true;
        self.changed.notify_one();
    }

    /// Tells the thread that there will be no more work.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for a ring, at most as long as `at_most` if that is given.
    pub fn wait(&self, at_most: Option<Duration>) -> Heard {
        let mut state = self.sleep(at_most, |state| !state.rung && !state.ended);
        match (state.ended, std::mem::take(&mut state.rung)) {
            (true, _) => Heard::End,
            (false, true) => Heard::Ring,
            (false, false) => Heard::Nothing,
        }
    }

    /// Waits for `time`, and takes all rings until then as one. Returns true if the end has come meanwhile.
    pub fn gather(&self, time: Duration) -> bool {
        let mut state = self.sleep(Some(time), |state| !state.ended);
        state.rung = false;
        state.ended
    }

    fn sleep(
        &self,
        at_most: Option<Duration>,
        while_so: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let while_so = |state: &mut State| while_so(state);
        let mut state = self.state.lock();
        match at_most {
            None => self.changed.wait_while(&mut state, while_so),
            Some(time) => {
                self.changed.wait_while_for(&mut state, while_so, time);
            }
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_heard_once() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        assert_eq!(bell.wait(None), Heard::Ring);
        assert_eq!(bell.wait(Some(Duration::ZERO)), Heard::Nothing);
    }

    #[test]
    fn a_ring_wakes_whoever_waits() {
        let bell = Arc::new(Bell::default());
        let waiting = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || bell.wait(None))
        };
        bell.ring();
        assert_eq!(waiting.join().unwrap(), Heard::Ring);
    }

    #[test]
    fn rings_that_come_close_together_are_gathered_into_one() {
        let bell = Bell::default();
        bell.ring();
        assert_eq!(bell.wait(None), Heard::Ring);
        bell.ring();
        assert!(!bell.gather(Duration::ZERO));
        assert_eq!(bell.wait(Some(Duration::ZERO)), Heard::Nothing);
    }

    #[test]
    fn the_end_comes_before_all_work_and_stays() {
        let bell = Bell::default();
        bell.ring();
        bell.end();
        assert!(bell.gather(Duration::from_secs(3600)));
        for _ in 0..2 {
            assert_eq!(bell.wait(None), Heard::End);
        }
    }
}
