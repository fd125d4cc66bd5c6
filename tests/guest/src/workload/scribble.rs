//! Overwriting memory that isn't the guest's own.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::{numbers, threads};
use crate::plan::Plan;

/// The layout of the memory: counters and positions at the beginning, and rings in the second half.
const HALF: usize = 32 << 20;
const RINGS: usize = 16 << 20;
const WORD: usize = size_of::<u64>();
/// Calls on each CPU between two checks whether more is to be written.
const BOUT: u64 = 100;

/// Ways to damage the words that aren't zero.
const WAYS: [fn(&mut u64, u64); 6] = [
    |word, random| *word = random,
    |word, _| *word = u64::MAX,
    |word, random| *word = word.wrapping_add(random % 4096).wrapping_sub(2048),
    |word, random| *word ^= 1 << (random % 64),
    |word, random| *word = word.wrapping_add((random % 64) << 20),
    |word, _| *word = 0,
];

/// Overwrites the 48 MiB at the physical address `at` in several ways, `rounds` times, while a thread on each CPU makes
/// `syscall` in bouts of `count`.
///
/// Steps: `begins`.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let at = address(plan)?;
    let memory = map(at, HALF + RINGS)?;
    super::step(plan, "begins", json!({}))?;
    let (calls, written) = meanwhile(plan, plan.count, || {
        scribble(memory, plan.rounds, plan.seed)
    })?;
    Ok(json!({ "calls": calls, "written": written }))
}

/// Writes random numbers over the `count` bytes at the physical address `at`, `rounds` times, while a thread on each
/// CPU makes `syscall` in bouts. Code that runs from these bytes or uses them may crash the guest, so this may end only
/// with the guest.
///
/// Steps: `begins`.
pub fn overwrite(plan: &Plan) -> io::Result<Value> {
    let words = plan.count as usize / WORD;
    let memory = map(address(plan)?, words * WORD)?;
    super::step(plan, "begins", json!({ "words": words }))?;
    let mut next = numbers::from(plan.seed);
    let calls = meanwhile(plan, BOUT, || {
        for index in (0..plan.rounds).flat_map(|_| 0..words) {
            // SAFETY: the index is within the mapping; nothing of this program is there.
            unsafe { memory.wrapping_add(index).write_volatile(next()) };
        }
    });
    Ok(json!({ "calls": calls?.0, "written": words as u64 * plan.rounds }))
}

/// Does some work while a thread on each CPU makes the plan's call, in bouts of `count`. Returns how many calls there
/// were.
fn meanwhile<T>(plan: &Plan, count: u64, work: impl FnOnce() -> T) -> io::Result<(u64, T)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut calls = 0;
            while !done.load(Ordering::Relaxed) {
                let bout = threads::run(plan.call, count)?;
                calls += bout["calls"].as_u64().unwrap_or_default();
            }
            Ok::<u64, io::Error>(calls)
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let calls = calls.join();
        let calls = calls.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        Ok((calls?, worked))
    })
}

/// The plan's physical address.
fn address(plan: &Plan) -> io::Result<i64> {
    let digits = plan.at.trim_start_matches("0x");
    i64::from_str_radix(digits, 16)
        .map_err(|error| io::Error::other(format!("at={}: {error}", plan.at)))
}

/// Maps the memory, for as long as this process lives.
fn map(at: i64, length: usize) -> io::Result<*mut u64> {
    let file = File::options().read(true).write(true).open("/dev/mem")?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping where the kernel chooses; what is there isn't memory of this program.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            protection,
            flags,
            file.as_raw_fd(),
            at,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(start.cast())
}

/// Damages the memory. Returns how many words of the rings were written.
fn scribble(memory: *mut u64, rounds: u64, seed: u64) -> u64 {
    let mut next = numbers::from(seed);
    let word = |index: usize| memory.wrapping_add(index);
    // SAFETY: all indexes are within the mapping; other writers are there, too, and any value is valid.
    let read = |index: usize| unsafe { word(index).read_volatile() };
    // SAFETY: as above.
    let write = |index: usize, value: u64| unsafe { word(index).write_volatile(value) };
    let live: Vec<usize> = (0..HALF / WORD / 2)
        .filter(|index| read(*index) != 0)
        .collect();
    let mut written = 0;
    for round in 0..rounds {
        let way = WAYS[round as usize % WAYS.len()];
        for index in &live {
            let mut value = read(*index);
            way(&mut value, next());
            write(*index, value);
        }
        // Every fourth round a whole ring, otherwise words here and there.
        let (words, step) = ((HALF / WORD)..((HALF + RINGS) / WORD), 97);
        for index in words.step_by(if round % 4 == 3 { 1 } else { step }) {
            let mut value = read(index);
            way(&mut value, next());
            write(index, value);
            written += 1;
        }
        written += live.len() as u64;
    }
    written
}
