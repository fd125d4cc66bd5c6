//! What one client can ask for at most, so that it can't exhaust the server.

/// VMs of one server, ended ones included.
pub const VMS: usize = 64;

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

/// Symbols in one answer, when the request gives no limit.
pub const SYMBOLS: u32 = 1000;

/// Symbols in one answer at most.
pub const SYMBOLS_MOST: u32 = 500_000;

/// Characters of a VM's name.
pub const NAME_CHARS: usize = 64;
