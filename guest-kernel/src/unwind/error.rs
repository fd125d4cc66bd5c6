//! What can be wrong with a table.

use guest_state::GuestVirtAddr;
use thiserror::Error;

/// Why a table of ORC entries can't be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OrcError {
    /// It isn't in the image.
    #[error(
        "the kernel's table {table} ({start} to {end}) is not in its image; the file is damaged"
    )]
    Outside {
        /// The symbol where it starts.
        table: &'static str,
        /// That symbol's address.
        start: GuestVirtAddr,
        /// The address of the symbol where it ends.
        end: GuestVirtAddr,
    },
    /// Its two parts have different lengths.
    #[error(
        "the kernel's table of how to unwind stacks makes no sense ({ips} bytes of addresses, {entries} \
         bytes of entries); it is damaged"
    )]
    Uneven {
        /// Bytes of addresses.
        ips: usize,
        /// Bytes of entries.
        entries: usize,
    },
    /// The entries are encoded in an unknown way.
    #[error(
        "the kernel describes how to unwind its stacks in a way that vmprobe doesn't know; report the \
         kernel's version"
    )]
    UnknownFormat,
    /// Its code doesn't fit into 4 GiB, or it has more kinds of entries than any kernel.
    #[error("the kernel's table of how to unwind stacks makes no sense ({what}); it is damaged")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
}
