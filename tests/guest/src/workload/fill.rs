//! All of the memory that the kernel gives to a process.

use std::fs;
use std::io;
use std::ptr;

use serde_json::{Value, json};

use super::step;
use crate::plan::Plan;

const PAGE: usize = 4096;
/// The word with which each page begins. The page's number follows.
const MARK: u64 = 0x656c_6c69_6646_7376;

/// Takes all free memory except for `count` MiB, a page at a time, and fills it; waits; then checks that its content
/// hasn't changed.
///
/// Steps: `filled`.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let free = free()?;
    let left = (plan.count as usize) << 10;
    let pages = free.saturating_sub(left) * 1024 / PAGE;
    let length = pages * PAGE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // So that small free pieces are used, too. In a kernel without large pages this is refused.
    // SAFETY: it changes nothing that is in the mapping.
    unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
    // SAFETY: the mapping is this function's own, zero at first and aligned to pages.
    let words = unsafe { std::slice::from_raw_parts_mut(start.cast::<u64>(), length / 8) };
    for (index, word) in words.iter_mut().enumerate() {
        *word = filling(index);
    }
    let mark = format!("{MARK:#x}");
    let filled = step(plan, "filled", json!({ "pages": pages, "mark": mark }));
    let wrong = words.iter().enumerate();
    let wrong = wrong.filter(|(index, word)| **word != filling(*index));
    let wrong: Vec<usize> = wrong.map(|(index, _)| index).collect();
    // SAFETY: nothing refers to the mapping any more.
    let unmapped = unsafe { libc::munmap(start, length) };
    filled?;
    super::sys::check(unmapped)?;
    Ok(json!({ "pages": pages, "wrong": wrong.len() }))
}

/// The value that is written to a word.
fn filling(index: usize) -> u64 {
    match (index % (PAGE / 8), index / (PAGE / 8)) {
        (0, _) => MARK,
        (1, page) => page as u64,
        (word, page) => (word as u64 ^ (page as u64) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// Free memory in KiB.
fn free() -> io::Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other("/proc/meminfo has no MemFree"))
}
