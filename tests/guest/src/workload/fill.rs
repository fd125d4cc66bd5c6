//! All of the memory that the kernel gives to a process.

use std::fs;
use std::io;
use std::ptr;

use serde_json::{Value, json};

use super::step;
use super::threads::{online_cpus, pin_to};
use crate::plan::Plan;

const PAGE: usize = 4096;
/// The words of a page.
const WORDS: usize = PAGE / 8;
/// The word with which each page begins. The page's number follows.
const MARK: u64 = 0x656c_6c69_6646_7376;

/// The pages that a CPU fills before it is the next one's turn.
const TURN: usize = 1024;
/// Sets how much of the memory each CPU may keep free for itself, as the divisor of a zone's size
/// (Documentation/admin-guide/sysctl/vm.rst).
const KEPT: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

/// Takes all free memory except for `count` MiB, a page at a time, and fills it; waits; then checks that its content
/// hasn't changed.
///
/// A page that was freed on one CPU may be given out again only there (`struct per_cpu_pages` in
/// `include/linux/mmzone.h`), and isn't counted as free. So all CPUs fill, in turn, and each keeps as few as it can.
///
/// Steps: `filled`.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let left = (plan.count as usize) << 10;
    let length = kib("MemTotal")? * 1024 / PAGE * PAGE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
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
    let filled = fill(words, left).and_then(|pages| {
        let words = &words[..pages * WORDS];
        let mark = format!("{MARK:#x}");
        step(plan, "filled", json!({ "pages": pages, "mark": mark }))?;
        let wrong = words.iter().enumerate();
        let wrong = wrong.filter(|(index, word)| **word != filling(*index));
        Ok(json!({ "pages": pages, "wrong": wrong.count() }))
    });
    // SAFETY: nothing refers to the mapping any more.
    super::sys::check(unsafe { libc::munmap(start, length) })?;
    filled
}

/// Fills pages until `left` KiB are free. Returns how many.
fn fill(words: &mut [u64], left: usize) -> io::Result<usize> {
    fs::write(KEPT, i32::MAX.to_string())?;
    let cpus = online_cpus()?;
    let mut pages = 0;
    for cpu in cpus.iter().cycle() {
        let more = kib("MemFree")?.saturating_sub(left) * 1024 / PAGE;
        if more == 0 {
            break;
        }
        pin_to(&[*cpu])?;
        let first = pages * WORDS;
        pages += more.min(TURN);
        for (index, word) in words[..pages * WORDS].iter_mut().enumerate().skip(first) {
            *word = filling(index);
        }
    }
    pin_to(&cpus)?;
    Ok(pages)
}

/// The value that is written to a word.
fn filling(index: usize) -> u64 {
    match (index % WORDS, index / WORDS) {
        (0, _) => MARK,
        (1, page) => page as u64,
        (word, page) => (word as u64 ^ (page as u64) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// The size in KiB that a line of `/proc/meminfo` tells.
fn kib(name: &str) -> io::Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let line = lines.find(|(found, _)| *found == name);
    let number = line.and_then(|(_, size)| size.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("/proc/meminfo has no {name}")))
}
