//! Fresh memory again and again, so that the kernel clears pages all the time.

use std::io;
use std::ptr;

use serde_json::{Value, json};

use super::threads::{self, online_cpus};

/// Bytes that a thread uses at a time: some pages of 2 MiB.
const LENGTH: usize = 6 << 20;

/// One thread on each CPU, `count` times, takes new memory, checks that it is zero, fills it, checks its content, and
/// gives it back.
pub fn run(count: u64) -> io::Result<Value> {
    let cpus = online_cpus()?.len();
    threads::on_each_cpu(|cpu| (0..count).try_for_each(|round| once(cpu as u64, round)))?;
    Ok(json!({ "cpus": cpus, "bytes": cpus as u64 * count * LENGTH as u64 }))
}

fn once(cpu: u64, round: u64) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Large pages and small ones in turn. In a kernel without large pages this is refused.
    let advice = if round.is_multiple_of(2) {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    // SAFETY: it changes nothing that is in the mapping.
    unsafe { libc::madvise(start, LENGTH, advice) };
    // SAFETY: the mapping is this function's own, zero at first and aligned to pages.
    let words = unsafe { std::slice::from_raw_parts_mut(start.cast::<u64>(), LENGTH / 8) };
    let right = check(words, (cpu << 32) | round);
    // SAFETY: nothing refers to the mapping any more.
    let unmapped = unsafe { libc::munmap(start, LENGTH) };
    super::sys::check(unmapped)?;
    right
}

fn check(words: &mut [u64], seed: u64) -> io::Result<()> {
    let wrong = |what: &str, at: usize| {
        let offset = at * 8;
        io::Error::other(format!("new memory {what} at byte {offset:#x}"))
    };
    if let Some(at) = words.iter().position(|word| *word != 0) {
        return Err(wrong("isn't zero", at));
    }
    let filling = |at: usize| (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (at, word) in words.iter_mut().enumerate() {
        *word = filling(at);
    }
    let mut words = words.iter().enumerate();
    match words.find(|(at, word)| **word != filling(*at)) {
        Some((at, _)) => Err(wrong("lost what was written", at)),
        None => Ok(()),
    }
}
