//! What clients can ask for at most, so that they can't exhaust the server.

use std::ops::RangeInclusive;
use std::time::Duration;

use tonic::Status;

use crate::status;

/// Limits that the server's owner sets, one option of `vmprobed` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// VMs of the server, ended ones included.
    pub vms: usize,
    /// MiB of memory of all its guests together. A guest takes what it uses, not what it has, so
    /// this may be more than the host has.
    pub guest_memory_mib: u64,
    /// MiB of one kernel or initramfs.
    pub file_mib: u64,
    /// VMs that are being made at the same time: so many kernels are unpacked beside each other.
    /// Others wait for their turn.
    pub creations: usize,
    /// Probes of one VM.
    pub probes: usize,
    /// Calls that are under way at the same time and do something. Each may take a thread, and
    /// [`REQUEST_BYTES`] until its request is read.
    pub calls: usize,
    /// Streams, and calls that wait for something to happen, at the same time. A stream of events
    /// holds some 24 MiB when its client reads too slowly.
    pub streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            vms: 64,
            guest_memory_mib: 1 << 20,
            file_mib: vmm::MAX_FILE >> 20,
            creations: 4,
            probes: 250_000,
            calls: 256,
            streams: 256,
        }
    }
}

/// Calls and streams of one connection at the same time. A client that makes more waits, by itself.
pub const STREAMS_A_CONNECTION: u32 = 128;

/// Sessions of one VM, those included whose clients were cut off.
pub const SESSIONS: usize = 1000;

/// Milliseconds that the probes of a client stay that was cut off, and its events are kept.
const LINGER_MS: u32 = 600_000;

/// The time of a request's field `linger_ms`.
///
/// # Errors
/// `INVALID_ARGUMENT` for more than [`LINGER_MS`].
pub fn linger(ms: u32) -> Result<Duration, Status> {
    if ms > LINGER_MS {
        let why = format!("what a client leaves is kept for {LINGER_MS} ms at most, not {ms}");
        return Err(status::invalid("linger_ms", why));
    }
    Ok(Duration::from_millis(ms.into()))
}

/// Probes in one request.
pub const PROBES_A_BATCH: usize = 100_000;

/// Bytes of one request: a batch of [`PROBES_A_BATCH`] probes with long names fits.
pub const REQUEST_BYTES: usize = 16 << 20;

/// Entries of the list of what can't be probed that one message has at most, and that are looked at
/// for it: about 100 KiB.
pub const BLACKLIST_CHUNK: usize = 1000;

/// Bytes of a pattern for names; the kernel's longest name has 511 (`KSYM_NAME_LEN`).
pub const PATTERN_BYTES: usize = 512;

/// Bytes of guest memory in one answer.
pub const MEMORY_BYTES: u32 = 1 << 20;

/// Items of a page, when the request gives no size.
pub const PAGE: u32 = 1000;

/// Items of a page at most.
pub const PAGE_MOST: u32 = 10_000;

/// Calls under way that one message has at most.
pub const CALLS_CHUNK: usize = 1000;

/// Characters of a VM's name.
pub const NAME_CHARS: usize = 64;

/// Milliseconds that a client may ask for to answer a hit in.
pub const ANSWER_MS: RangeInclusive<u32> = 1..=60_000;

/// Bytes of guest memory that a client reads at a hit at a time.
pub const HIT_READ_BYTES: u32 = 1 << 16;

/// Bytes of guest memory that a client writes at a hit at a time.
pub const HIT_WRITE_BYTES: RangeInclusive<usize> = 1..=4096;

/// Addresses of one `ReadStack` at most: so many has an event at most, too.
pub const STACK_ADDRESSES: u32 = 64;

/// Bytes of guest memory that a debugger reads at a time.
pub const DEBUG_READ_BYTES: u32 = 1 << 16;

/// Bytes of guest memory that a debugger writes at a time.
pub const DEBUG_WRITE_BYTES: RangeInclusive<usize> = 1..=4096;

/// Breakpoints of a debugger.
pub const BREAKPOINTS: usize = 1000;

/// Bytes of guest memory in one part of a dump.
pub const DUMP_BYTES: u64 = 1 << 20;

/// Bytes under way of one stream between the server and a VM's process, and of all of them. The second is as much as
/// HTTP/2 allows, so that streams which their clients don't read hold up no other.
pub const STREAM_WINDOW: u32 = 1 << 20;
pub const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
