//! Where memory is: on which NUMA nodes, and whether above 4 GiB.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};

use super::sys;

const NODES: &str = "/sys/devices/system/node";
const PAGE: usize = 4096;
/// The most pages that are searched for one above 4 GiB.
const PAGES: usize = 1 << 14;
/// A file's name, which the probe reports. There is no such file.
const NAME: &str = "/above-4-gib";

/// Each node's CPUs, its memory in KiB, and its distances to all.
pub fn nodes() -> io::Result<Value> {
    let mut nodes = Vec::new();
    for node in 0.. {
        let folder = format!("{NODES}/node{node}");
        let Ok(cpus) = fs::read_to_string(format!("{folder}/cpulist")) else {
            break;
        };
        let memory = fs::read_to_string(format!("{folder}/meminfo"))?;
        let total = memory.lines().find(|line| line.contains("MemTotal"));
        let kib = total.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
        let distances = fs::read_to_string(format!("{folder}/distance"))?;
        nodes.push(json!({ "cpus": cpus.trim(), "kib": kib, "distances": distances.trim() }));
    }
    Ok(json!({ "nodes": nodes }))
}

/// Opens a file that isn't there `count` times, by a name in a page above 4 GiB. Reports where the page is.
pub fn above(count: u64) -> io::Result<Value> {
    let mut memory = vec![0u8; PAGES * PAGE];
    let map = File::open("/proc/self/pagemap")?;
    let name = CString::new(NAME)?;
    let bytes = name.as_bytes_with_nul();
    let first = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    for page in memory[first..].chunks_exact_mut(PAGE) {
        page[..bytes.len()].copy_from_slice(bytes);
        let address = page.as_ptr().addr();
        // Bits 0 to 54 are the page's number (Documentation/admin-guide/mm/pagemap.rst).
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, (address / PAGE * 8) as u64)?;
        let physical = (u64::from_le_bytes(entry) & ((1 << 55) - 1)) * PAGE as u64;
        if physical < 1 << 32 {
            continue;
        }
        for _ in 0..count {
            // SAFETY: the page holds a string that ends in a NUL.
            let opened = unsafe { libc::open(page.as_ptr().cast(), libc::O_RDONLY) };
            if sys::check(opened).is_ok() {
                return Err(io::Error::other(format!("there is a file {NAME}")));
            }
        }
        return Ok(json!({ "physical": physical, "address": address }));
    }
    Err(io::Error::other("no page of this process is above 4 GiB"))
}
