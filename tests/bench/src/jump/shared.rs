//! Compares a ring for each vCPU with one for all: two threads call the same probed function.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use probe_engine::detour::Purpose;
use probe_engine::probe::Capture;

use super::subject::{CALLS, Subject};
use super::{JumpError, rounded};
use crate::clock::Clock;
use crate::report::Entry;

/// Many, as both threads have to run at once.
const ROUNDS: usize = 2001;
const THREADS: usize = 2;

/// Measures both.
///
/// # Errors
/// See [`JumpError`].
pub fn measure(clock: &Clock) -> Result<Vec<Entry>, JumpError> {
    let mut entries = Vec::new();
    for (shared, what) in [
        (false, "a ring each, without `lock`"),
        (true, "one ring for both, with `lock`"),
    ] {
        let (value, rounds) = of_two(clock, shared)?;
        if rounds == 0 {
            continue;
        }
        let how = format!(
            "two threads hit a jump probe with full record at once: {what}; a hit and call of each"
        );
        let note = format!("median of {rounds} rounds in which both threads ran all the time");
        entries.push(Entry::native("BN04", rounded(value), "ns", how).note(note));
    }
    Ok(entries)
}

/// Returns the nanoseconds of a call, and the number of rounds in which both threads ran all the
/// time.
fn of_two(clock: &Clock, shared: bool) -> Result<(f64, usize), JumpError> {
    let mut subject = Subject::new(THREADS as u8)?;
    let dead = subject.dead_at_entry();
    let purpose = Purpose {
        capture: Some(Capture::FULL),
        ..Purpose::default()
    };
    subject.probe(&purpose, dead, shared)?;
    subject.patch(true);
    let subject = &subject;
    let (barrier, arrived) = (&Barrier::new(THREADS), &AtomicUsize::new(0));
    let calls = CALLS / THREADS as u64;
    let times = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || -> Result<Vec<(u64, u64)>, JumpError> {
                    let vcpu = if shared { 0 } else { thread };
                    subject.blocks.enter(vcpu)?;
                    let mut times = Vec::new();
                    for round in 1..=ROUNDS {
                        if barrier.wait().is_leader() {
                            (0..THREADS).for_each(|vcpu| subject.blocks.discard(vcpu));
                        }
                        barrier.wait();
                        // Both threads spin until the other is there too: waking up takes longer
                        // than a round.
                        arrived.fetch_add(1, Ordering::SeqCst);
                        while arrived.load(Ordering::SeqCst) < THREADS * round {
                            std::hint::spin_loop();
                        }
                        let start = clock.now();
                        subject.call(calls);
                        times.push((start, clock.now()));
                    }
                    Ok(times)
                })
            })
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| JumpError::Thread)?);
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let [first, second] = [0, 1].map(|thread| times.get(thread).cloned().unwrap_or_default());
    let together = first.iter().zip(&second).filter_map(|(a, b)| {
        let overlap = a.1.min(b.1).saturating_sub(a.0.max(b.0));
        let longest = (a.1 - a.0).max(b.1 - b.0);
        // Otherwise one of the threads ran alone for a while.
        (overlap * 10 > longest * 9).then(|| clock.nanoseconds(longest) / calls as f64)
    });
    let mut times: Vec<f64> = together.collect();
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    Ok((median, times.len()))
}
