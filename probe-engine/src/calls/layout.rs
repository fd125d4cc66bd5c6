//! The table of calls: the layout of the arena's window for it ([`crate::arena::CALLS`]).
//!
//! First come the keys, by which a call is found. They are in buckets of as many as a line of the processor's cache
//! holds; each key is the address of a return address, or 0. Then come the counters of each detour, and then, for each
//! key, the call itself.

use crate::fetch::Fetches;

/// The number of buckets, a power of two.
pub const BUCKETS: u64 = 1 << 12;
/// Keys of a bucket.
pub const WAYS: u64 = 8;
/// What the address of a return address is multiplied by; the highest bits of the product are the bucket's
/// number (Knuth, The Art of Computer Programming, vol. 3, 6.4: 2^64 divided by the golden ratio).
pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of the keys, which are at the beginning of the window.
pub const KEYS_LEN: u64 = BUCKETS * WAYS * 8;

/// Where the tallies are, by the detours' numbers.
pub const TALLIES: u64 = 1 << 20;
/// Bytes of a tally: four counters of 32 bits, changed by several vCPUs at a time.
pub const TALLY_LEN: u64 = 16;
/// Calls that are followed now.
pub const ACTIVE: u64 = 0;
/// Calls that weren't followed, and followed ones whose record was lost. It wraps around.
pub const MISSED: u64 = 4;
/// Calls that have returned and were only to be counted. It wraps around.
pub const COUNTED: u64 = 8;
/// Calls that never return, as their task has ended. It wraps around.
pub const ENDED: u64 = 12;
/// The number of detours that there can be tallies for.
pub const NUMBERS: u32 = 1 << 18;

/// Where the calls are.
pub const CALLS: u64 = 8 << 20;
/// Bytes of a call.
pub const CALL_LEN: u64 = 256;

/// Where the trampoline goes on to. It may be a trampoline again, where one function has jumped into another.
pub const CALLER: u64 = 0;
/// What the return address was before any trampoline's.
pub const ORIGIN: u64 = 8;
/// The detour's number and flags, in 32 bits.
pub const WORD: u64 = 16;
/// The time stamp counter at the function's entry.
pub const ENTRY_TSC: u64 = 24;
/// What was fetched at the function's entry ([`Fetches::ALL`]).
pub const ENTRY: u64 = 32;
/// How many calls below it have the same place for their return address, in 32 bits. Of the calls at one place, the
/// one that began last returns first.
pub const LEVEL: u64 = 168;
/// The address of the `task_struct` that made the call; 0 if that isn't known.
pub const TASK: u64 = 176;
/// The task's stack protector's secret, 0 if it has none: no later task at the same address has the
/// same.
pub const CANARY: u64 = 184;
/// The address of the detour's routine that writes the return's record, if the call has [`VALUES`].
pub const AT_RETURN: u64 = 192;

/// In a key: the call isn't whole yet, or is being taken out. The bit is free, as keys are aligned
/// addresses.
pub const UNFINISHED: u64 = 1;

/// The part of [`WORD`] that is the detour's number.
pub const NUMBER: u32 = NUMBERS - 1;
/// In [`WORD`]: the return's record has values, which only the call's detour knows.
pub const VALUES: u32 = 1 << 26;
/// In [`WORD`]: the detour is still writing down how the call began.
pub const BEGINS: u32 = 1 << 27;
/// In [`WORD`]: the call has come back to the trampoline, which does the rest.
pub const RETURNS: u32 = 1 << 28;
/// In [`WORD`]: no probe follows the call any more. The trampoline only leads it on, and it counts
/// nowhere.
pub const ORPHAN: u32 = 1 << 29;
/// In [`WORD`]: if its ring is full, the vCPU waits.
pub const LOSSLESS: u32 = 1 << 30;
/// In [`WORD`]: the call has no record.
pub const COUNTS: u32 = 1 << 31;

/// The offset in the trampoline to which its first instruction, a call, returns: the address that this pushes stands
/// for the followed call's return address until that is put there.
pub const PUSHED: u64 = 5;
/// The offset in the trampoline of the routine that detours call.
pub const ENTER: u64 = 16;
/// Bytes for the trampoline. Right behind it is the trampoline that breakpoints use.
pub const TRAMPOLINE_LEN: u64 = 2048 - 32;
/// A return address that is less than this from the trampoline's beginning is one of ours.
pub const TRAMPOLINES: u64 = 2048;

/// Bytes of the window.
pub const WINDOW: u64 = 16 << 20;

const _: () = {
    assert!(KEYS_LEN <= TALLIES);
    assert!(ENDED + 4 <= TALLY_LEN);
    assert!(TALLIES + NUMBERS as u64 * TALLY_LEN <= CALLS);
    assert!(CALLS + BUCKETS * WAYS * CALL_LEN <= WINDOW);
    assert!(ENTRY + Fetches::ALL.len_bytes() <= LEVEL);
    assert!(AT_RETURN + 8 <= CALL_LEN);
    assert!(NUMBER < VALUES);
};

/// Returns the number of the bucket of the call whose return address is at `slot`.
pub const fn bucket(slot: u64) -> u64 {
    slot.wrapping_mul(HASH) >> (u64::BITS - BUCKETS.trailing_zeros())
}
