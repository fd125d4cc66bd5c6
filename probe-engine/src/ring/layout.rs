//! Where rings and counters are in the arena's data, and what a record looks like.
//!
//! What belongs to one vCPU is in a *block*. Linux keeps the start of a CPU's variables in its GS base
//! (`arch/x86/include/asm/percpu.h`); these starts lie at fixed distances from each other (`__per_cpu_offset`). The
//! blocks lie at the same distances. So one constant, added to GS, leads to the block of the vCPU that executes the
//! instruction, and one instruction without `lock` changes a word of it: no interrupt and no migration to another vCPU
//! can come in between.

use crate::fetch::Fetches;

/// The vCPU's ring: how far space is given away. See [`position`]. There is space for a record if what is between
/// [`TAIL`] and the new head is at most [`RING_LEN`].
pub const HEAD: u64 = 0;
/// How far the host has read, in the same form. The host writes it, and relies on its own copy.
pub const TAIL: u64 = 8;
/// Counters of 32 bits, one after the other, to the end of the block. They wrap around.
pub const CELLS: u64 = 64;
/// Bytes of a counter.
pub const CELL: u64 = 4;

/// The lowest bit of a ring's number in [`HEAD`] and [`TAIL`]; below are the bytes since the ring's beginning, over
/// all rounds: enough for years at a GB a second. A task that moves to another vCPU between reading a head and
/// changing it finds another number there.
pub const RING_SHIFT: u32 = 58;

const _: () = assert!(RINGS <= 1 << (u64::BITS - RING_SHIFT));

/// A position in a ring as [`HEAD`] and [`TAIL`] have it.
pub const fn position(ring: u8, bytes: u64) -> u64 {
    (ring as u64) << RING_SHIFT | bytes & ((1 << RING_SHIFT) - 1)
}

/// Bytes of a ring: a power of two. It is mapped twice, the second time right behind the first, so a
/// record is in one piece wherever it begins. Ring `n` is at `n * 2 * RING_LEN` from the first.
pub const RING_LEN: u64 = 4 << 20;

/// The number of rings: as many as a VM has vCPUs at most.
pub const RINGS: u64 = 64;

/// A record begins with its header. That word is 0 until the writer has space. The first word that the writer writes
/// is the header with [`OPEN`]; the last byte, when the record is whole, puts this in the place of [`OPEN`]. The host
/// clears what it has read before it gives the space back. Bits 0 to 31: the number of the detour. Bits 32 to 39: the
/// record's length in words of 8 bytes, the header included. Bit 40: it is of a call that has returned. Bits 48 to 63:
/// this.
pub const MAGIC: u64 = 0x7670;
/// In the place of [`MAGIC`] while the record is being written: so the host knows which detour's it is and where the
/// next one begins, also if it is never finished.
pub const OPEN: u64 = 0x7671;
/// In the place of [`MAGIC`] when the host has taken the record, or given it up, and has to leave it
/// where it is because of an unfinished one before it.
pub const TAKEN: u64 = 0x7672;
/// Where in a record the byte is that makes it whole, the lowest of [`MAGIC`].
pub const WHOLE_BYTE: u64 = 6;

const _: () = assert!(MAGIC >> 8 == OPEN >> 8);

/// The words of a record: header, time stamp counter, current task (0 if unknown), then what was asked for: registers
/// ([`Fetches::layout`]), the context, values ([`super::Shape`]). The counter is read after the space has been
/// reserved, so records for which no space is reserved yet are younger than all that have been seen.
pub const RECORD_TSC: u64 = 8;
/// See [`RECORD_TSC`].
pub const RECORD_TASK: u64 = 16;
/// See [`RECORD_TSC`].
pub const RECORD_VALUES: u64 = 24;

/// Bytes of all registers' values.
const ALL: u64 = Fetches::ALL.len_bytes();

/// Where a record's context, if it has one, has the task's `pid` (32 bits).
pub const CONTEXT_PID: u64 = 0;
/// The same of its `tgid` (32 bits).
pub const CONTEXT_TGID: u64 = 4;
/// The same of its `comm` (16 bytes).
pub const CONTEXT_COMM: u64 = 8;
/// The same of the CPU's preemption count (32 bits).
pub const CONTEXT_PREEMPT: u64 = 24;
/// The same of the task's `migration_disabled` (32 bits).
pub const CONTEXT_MIGRATION: u64 = 28;
/// The same of the flags of its `thread_info` (64 bits).
pub const CONTEXT_FLAGS: u64 = 32;
/// Bytes of a context. What the kernel's types don't tell is 0 in it.
pub const CONTEXT_LEN: u64 = 40;

/// A record of a return has all registers, as the caller finds them, and then what the return address was,
/// the time stamp counter at the function's entry, all registers there, the context at the return, and values.
pub const RETURN_CALLER: u64 = RECORD_VALUES + ALL;
/// See [`RETURN_CALLER`].
pub const RETURN_CONTEXT: u64 = RETURN_CALLER + 16 + ALL;
/// Words of any record at most.
pub const WORDS_MAX: u64 = 255;
/// Words of a return's record without values.
pub const RETURN_WORDS: u64 = (RETURN_CONTEXT + CONTEXT_LEN) / 8;

/// Returns the header of a record of `words` words.
pub const fn header(detour: u32, words: u8) -> u64 {
    MAGIC << 48 | (words as u64) << 32 | detour as u64
}

/// Returns the header of a return's record of `words` words, at least [`RETURN_WORDS`].
pub const fn return_header(detour: u32, words: u8) -> u64 {
    header(detour, words) | 1 << 40
}

/// The header that a record has while it is being written.
pub const fn open(header: u64) -> u64 {
    with_magic(header, OPEN)
}

/// The header with another magic.
pub const fn with_magic(header: u64, magic: u64) -> u64 {
    header & ((1 << 48) - 1) | magic << 48
}
