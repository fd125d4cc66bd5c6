//! Where a chain has the bytes that go to or come from the disk.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};

use super::request::{HEADER_LEN, Request, Status};
use crate::devices::virtio::queue::Chain;

/// What a request does that can go on while others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// From the file into the guest's memory.
    Read,
    /// The other way.
    Write,
    /// All that was written survives a loss of power.
    Sync,
}

/// An operation, its part of the disk, and the chain that asks for it.
pub(super) struct Transfer {
    pub(super) operation: Operation,
    /// The offset on the disk, in bytes.
    pub(super) at: u64,
    /// Bytes of all pieces.
    pub(super) len: u64,
    /// Parts of the guest's memory.
    pub(super) pieces: Vec<Piece>,
    /// Where the request's status goes.
    pub(super) status_at: GuestAddress,
    /// It keeps the guest's memory mapped.
    pub(super) chain: Chain,
}

/// A part of the guest's memory in one of its mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its address in this process.
    pub(super) address: usize,
    /// Bytes of it.
    pub(super) len: usize,
}

impl Transfer {
    /// The transfer that a chain's request is. None where it is another kind of request, or its data aren't in the
    /// guest's memory, or it has no place for its status.
    pub(super) fn of(request: &Request, chain: &Chain) -> Option<Self> {
        let (operation, at) = match request {
            Request::Read { at } => (Operation::Read, *at),
            Request::Write { at } => (Operation::Write, *at),
            Request::Flush => (Operation::Sync, 0),
            Request::Name | Request::Discard(_) | Request::Zero(_) => return None,
        };
        // The guest may change descriptors at any time: what is read of them here is what counts.
        let part = |descriptor: virtio_queue::desc::split::Descriptor| {
            (descriptor.addr(), descriptor.len() as usize)
        };
        let readable: Vec<_> = chain.clone().readable().map(part).collect();
        let mut writable: Vec<_> = chain.clone().writable().map(part).collect();
        let status_at = take_last_byte(&mut writable)?;
        let parts = match operation {
            Operation::Read => writable,
            Operation::Write => without_first(readable, HEADER_LEN),
            Operation::Sync => Vec::new(),
        };
        let mut transfer = Self {
            operation,
            at,
            len: 0,
            pieces: Vec::with_capacity(parts.len()),
            status_at,
            chain: chain.clone(),
        };
        for (address, len) in parts {
            transfer.add(chain.memory(), address, len).ok()?;
        }
        Some(transfer)
    }

    fn add(
        &mut self,
        memory: &GuestMemoryMmap,
        address: GuestAddress,
        len: usize,
    ) -> Result<(), GuestMemoryError> {
        for slice in memory.get_slices(address, len) {
            let slice = slice?;
            self.pieces.push(Piece {
                address: slice.ptr_guard_mut().as_ptr().expose_provenance(),
                len: slice.len(),
            });
            self.len += slice.len() as u64;
        }
        Ok(())
    }

    /// Bytes of the chain that were filled, its status not among them, when all of it was done.
    pub(super) fn filled(&self) -> u64 {
        match self.operation {
            Operation::Read => self.len,
            Operation::Write | Operation::Sync => 0,
        }
    }

    /// Tells the guest how it went.
    ///
    /// # Errors
    /// The status' place isn't in the guest's memory.
    pub(super) fn tell(&self, status: Status) -> Result<(), GuestMemoryError> {
        self.chain.memory().write_obj(status as u8, self.status_at)
    }
}

/// Takes the last byte off some parts, and returns where it is.
fn take_last_byte(parts: &mut Vec<(GuestAddress, usize)>) -> Option<GuestAddress> {
    while let Some((address, len)) = parts.last_mut() {
        match len.checked_sub(1) {
            Some(rest) => {
                *len = rest;
                return address.0.checked_add(rest as u64).map(GuestAddress);
            }
            None => {
                parts.pop();
            }
        }
    }
    None
}

/// Parts without the first `count` bytes of them.
fn without_first(
    parts: Vec<(GuestAddress, usize)>,
    mut count: usize,
) -> Vec<(GuestAddress, usize)> {
    let cut = parts.into_iter().map(|(address, len)| {
        let less = len.min(count);
        count -= less;
        (
            GuestAddress(address.0.wrapping_add(less as u64)),
            len - less,
        )
    });
    cut.filter(|(_, len)| *len > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_wherever_they_begin_and_end() {
        let parts = |parts: &[(u64, usize)]| -> Vec<_> {
            let parts = parts.iter();
            parts.map(|(at, len)| (GuestAddress(*at), *len)).collect()
        };
        let cut = |of: &[(u64, usize)]| without_first(parts(of), 16);
        assert_eq!(cut(&[(0x1000, 16), (0x2000, 512)]), parts(&[(0x2000, 512)]));
        assert_eq!(
            cut(&[(0x1000, 10), (0x2000, 0), (0x3000, 518)]),
            parts(&[(0x3006, 512)])
        );
        assert_eq!(cut(&[(0x1000, 528)]), parts(&[(0x1010, 512)]));
        assert_eq!(cut(&[(0x1000, 3)]), parts(&[]));

        let mut some = parts(&[(0x1000, 512), (0x2000, 1), (0x3000, 0)]);
        assert_eq!(take_last_byte(&mut some), Some(GuestAddress(0x2000)));
        assert_eq!(some, parts(&[(0x1000, 512), (0x2000, 0)]));
        assert_eq!(
            take_last_byte(&mut parts(&[(0x1000, 513)])),
            Some(GuestAddress(0x1200))
        );
        assert_eq!(take_last_byte(&mut parts(&[(0x1000, 0)])), None);
        assert_eq!(take_last_byte(&mut Vec::new()), None);
    }
}
