//! Limits of what clients can ask for, so that they can't exhaust the server.

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
    /// VMs that are being made at the same time: this many kernels are unpacked at once. Others wait for their turn.
    pub creations: usize,
    /// Probes of one VM.
    pub probes: usize,
    /// Short calls under way at the same time. Each may take a thread, and `request_mib` until its request is read.
    pub calls: usize,
    /// Streams, and calls that wait for something to happen, at the same time.
    pub streams: usize,
    /// Events that wait for one client at most, and that are kept for one that may come back. Later ones are lost, and
    /// counted. 65,536 of them take some 12 MiB, those of return probes 24 MiB.
    pub event_queue: usize,
    /// MiB of one image.
    pub image_mib: u64,
    /// MiB of all images, of uploads under way and of the private copies of disks.
    pub images_mib: u64,
    /// MiB of one client's images.
    pub client_images_mib: u64,
    /// Images of all clients.
    pub image_count: usize,
    /// Uploads of images at the same time.
    pub uploads: usize,
    /// Sessions of one VM, those included whose clients were cut off.
    pub sessions: usize,
    /// Connections of clients at the same time.
    pub connections: usize,
    /// MiB of one request. A batch of `PROBES_A_BATCH` probes with long names fits into 16.
    pub request_mib: usize,
    /// Seconds that an upload may take for its next part.
    pub upload_seconds: u64,
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
            event_queue: 64 << 10,
            image_mib: 32 << 10,
            images_mib: 128 << 10,
            client_images_mib: 64 << 10,
            image_count: 1000,
            uploads: 16,
            sessions: 1000,
            connections: 1000,
            request_mib: 16,
            upload_seconds: 60,
        }
    }
}

impl Limits {
    /// Bytes of one request.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.request_mib.saturating_mul(1 << 20)
    }
}

/// Calls and streams of one connection at the same time. A client with more of them waits by itself.
pub const STREAMS_A_CONNECTION: u32 = 128;

/// The most milliseconds for which the probes of a client that was cut off stay, and its events are kept.
const LINGER_MS: u32 = 600_000;

/// Returns the time in a request's field `linger_ms`.
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

/// Milliseconds between two reports of a stream's progress.
const PROGRESS_MS: RangeInclusive<u32> = 10..=60_000;

/// Returns the time in a request's field `progress_ms`, if there is one.
///
/// # Errors
/// `INVALID_ARGUMENT` for a time outside of [`PROGRESS_MS`].
pub fn progress(ms: u32) -> Result<Option<Duration>, Status> {
    match ms {
        0 => Ok(None),
        ms if PROGRESS_MS.contains(&ms) => Ok(Some(Duration::from_millis(ms.into()))),
        ms => {
            let (least, most) = (PROGRESS_MS.start(), PROGRESS_MS.end());
            let why =
                format!("a stream tells how far it has come every {least} to {most} ms, not {ms}");
            Err(status::invalid("progress_ms", why))
        }
    }
}

/// Probes in one request.
pub const PROBES_A_BATCH: usize = 100_000;

/// The most entries of a blacklist in one message, and the most that are looked at for it: about 100 KiB.
pub const BLACKLIST_CHUNK: usize = 1000;

/// Bytes of a pattern for names; the kernel's longest name has 511 (`KSYM_NAME_LEN`).
pub const PATTERN_BYTES: usize = 512;

/// Bytes of guest memory in one answer.
pub const MEMORY_BYTES: u32 = 1 << 20;

/// Items of a page, when the request gives no size.
pub const PAGE: u32 = 1000;

/// Items of a page at most.
pub const PAGE_MOST: u32 = 10_000;

/// The most calls under way in one message.
pub const CALLS_CHUNK: usize = 1000;

/// Characters of the name of a VM or an image.
pub const NAME_CHARS: usize = 64;

/// Milliseconds that a client may ask for to answer a hit.
pub const ANSWER_MS: RangeInclusive<u32> = 1..=60_000;

/// Bytes of guest memory that a client reads at once at a hit.
pub const HIT_READ_BYTES: u32 = 1 << 16;

/// Bytes of guest memory that a client writes at once at a hit.
pub const HIT_WRITE_BYTES: RangeInclusive<usize> = 1..=4096;

/// Addresses of one `ReadStack` at most. An event has this many at most, too.
pub const STACK_ADDRESSES: u32 = 64;

/// Bytes of guest memory that a debugger reads at once.
pub const DEBUG_READ_BYTES: u32 = 1 << 16;

/// Bytes of guest memory that a debugger writes at once.
pub const DEBUG_WRITE_BYTES: RangeInclusive<usize> = 1..=4096;

/// Breakpoints of a debugger.
pub const BREAKPOINTS: usize = 1000;

/// Bytes of guest memory in one part of a dump.
pub const DUMP_BYTES: u64 = 1 << 20;

/// Bytes in one part of an upload, and zeros that one part can stand for.
pub const IMAGE_CHUNK: usize = 1 << 20;
pub const IMAGE_ZEROS: u64 = 64 << 20;

/// Bytes of requests under way for one stream of a client, and for all streams of a connection: an upload over a long
/// distance doesn't have to wait for the server's acknowledgement too often.
pub const CLIENT_WINDOW: u32 = 2 << 20;
pub const CLIENT_CONNECTION_WINDOW: u32 = 8 << 20;

/// Bytes under way for one stream between the server and a VM's process, and for all of them. The second is as much as
/// HTTP/2 allows, so that streams whose clients don't read hold up no other stream.
pub const STREAM_WINDOW: u32 = 1 << 20;
pub const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
