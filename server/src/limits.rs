//! What one client can ask for at most, so that it can't exhaust the server.

/// VMs of one server, ended ones included.
pub const VMS: usize = 64;

/// Probes in one request.
pub const PROBES_A_BATCH: usize = 100_000;

/// Bytes of one request: a batch of [`PROBES_A_BATCH`] probes with long names fits.
pub const REQUEST_BYTES: usize = 16 << 20;

/// Bytes of guest memory in one answer.
pub const MEMORY_BYTES: u32 = 1 << 20;

/// Symbols in one answer, when the request gives no limit.
pub const SYMBOLS: u32 = 1000;

/// Symbols in one answer at most.
pub const SYMBOLS_MOST: u32 = 100_000;

/// Characters of a VM's name.
pub const NAME_CHARS: usize = 64;
