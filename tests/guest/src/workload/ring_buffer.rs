//! The function tracer's binary buffers: which CPU called, and when.
//!
//! The kernel itself describes their format, in `events/header_page` and `events/header_event` of tracefs.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use super::tracefs;

/// Bytes of a page of the buffer.
const PAGE: usize = 4096;
/// Bytes of a page's time and of its used length, which come first.
const PAGE_HEADER: usize = 16;
/// The bits of the used length that are the length. Upper bits say that events were lost.
const USED: u64 = (1 << 20) - 1;
const LOST: u64 = 1 << 31;
/// The type of a function's entry (`TRACE_FN` in `kernel/trace/trace.h`).
const FUNCTION: u16 = 1;
const TIME_BITS: u32 = 27;

/// Returns the times of all calls that the tracer saw on this CPU, in order. Removes them from the buffer.
pub fn calls(cpu: usize) -> io::Result<Vec<u64>> {
    let path = tracefs::path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
    let mut raw = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let mut page = [0; PAGE];
    let mut times = Vec::new();
    loop {
        match raw.read(&mut page) {
            Ok(0) => break,
            Ok(length) => times.extend(entries(&page[..length]).ok_or_else(|| {
                io::Error::other(format!("the trace buffer of CPU {cpu} can't be read"))
            })?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(times)
}

/// Returns the times of the functions' entries in a page; `None` if the page isn't valid, or has lost some.
fn entries(page: &[u8]) -> Option<Vec<u64>> {
    let long = |at: usize| Some(u64::from_le_bytes(*page.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_le_bytes(*page.get(at..)?.first_chunk()?));
    let (mut time, used) = (long(0)?, long(8)?);
    if used & LOST != 0 {
        return None;
    }
    let end = PAGE_HEADER + (used & USED) as usize;
    let mut at = PAGE_HEADER;
    let mut times = Vec::new();
    while at < end {
        let header = word(at)?;
        let (kind, delta) = (header & 31, u64::from(header >> 5));
        let (data, length) = match kind {
            // The length is in the word behind the header, and includes that word.
            0 => (at + 8, 4 + word(at + 4)? as usize),
            1..=28 => (at + 4, 4 + kind as usize * 4),
            // Padding: the rest of the page, or as many bytes as the next word says.
            29 if delta == 0 => break,
            29 => {
                time += delta;
                at += 4 + word(at + 4)? as usize;
                continue;
            }
            // A longer time difference, or (31) the absolute time.
            30 => {
                time += delta + (u64::from(word(at + 4)?) << TIME_BITS);
                at += 8;
                continue;
            }
            _ => {
                time = delta + (u64::from(word(at + 4)?) << TIME_BITS);
                at += 8;
                continue;
            }
        };
        time += delta;
        let entry = u16::from_le_bytes(*page.get(data..)?.first_chunk()?);
        if entry == FUNCTION {
            times.push(time);
        }
        at += length;
    }
    Some(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(used: u64, words: &[u32]) -> Vec<u8> {
        let mut page = 1000_u64.to_le_bytes().to_vec();
        page.extend(used.to_le_bytes());
        page.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        page.resize(PAGE, 0);
        page
    }

    #[test]
    fn times_add_up_over_calls_gaps_and_extensions() {
        let words = [
            // A call of 8 bytes of data, 5 later.
            (5 << 5) | 2,
            1,
            0,
            // 2^27 + 3 later, and then a call.
            (3 << 5) | 30,
            1,
            2,
            1,
            0,
            // Another kind of entry, whose length is in a word of its own.
            7 << 5,
            8,
            9,
            // Padding to the end.
            29,
        ];
        let used = words.len() as u64 * 4;
        let second = 1005 + (1 << 27) + 3;
        assert_eq!(entries(&page(used, &words)), Some(vec![1005, second]));
    }

    #[test]
    fn a_page_that_lost_entries_is_none() {
        assert_eq!(entries(&page(12 | LOST, &[2, 1, 0])), None);
        assert_eq!(entries(&page(12, &[2, 1, 0])), Some(vec![1000]));
    }
}
