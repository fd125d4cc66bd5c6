//! Bits of an entry of the page tables.
//!
//! Sources: Intel SDM vol. 3A, 4.5.4; AMD64 APM vol. 2, 5.4.

/// The entry maps a page or leads to a table.
pub const PRESENT: u64 = 1 << 0;
/// Writes are allowed.
pub const WRITABLE: u64 = 1 << 1;
/// User mode may use it.
pub const USER: u64 = 1 << 2;
/// The processor has used the entry.
pub const ACCESSED: u64 = 1 << 5;
/// The processor has written to the page.
pub const DIRTY: u64 = 1 << 6;
/// PS: the entry maps a large page instead of leading to a table.
pub const LARGE: u64 = 1 << 7;
/// The page stays in the TLB when CR3 changes.
pub const GLOBAL: u64 = 1 << 8;
/// No instructions are fetched from there; reserved unless `EFER.NXE` is set.
pub const NO_EXECUTE: u64 = 1 << 63;
