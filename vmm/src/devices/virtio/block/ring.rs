//! Transfers of a raw image that go on at the same time, by `io_uring`.
//!
//! The kernel moves bytes between the file and the guest's memory, without a copy of ours. What a ring does passes no
//! seccomp filter. So a ring is made before the device's thread is confined, and then takes nothing but these
//! operations, and only on this file (`io_uring_register(2)`, `IORING_REGISTER_RESTRICTIONS`).

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd},
};

use io_uring::{IoUring, opcode, register::Restriction, squeue, types};
use slab::Slab;
use vmm_sys_util::eventfd::EventFd;

use super::transfer::{Operation, Piece, Transfer};

/// The file's place among those that are registered.
const FILE: types::Fixed = types::Fixed(0);

/// Transfers under way.
pub(super) struct Ring {
    ring: IoUring,
    /// Signalled when one is done.
    done: EventFd,
    under_way: Slab<UnderWay>,
    most: usize,
}

struct UnderWay {
    transfer: Transfer,
    /// The parts of the transfer that aren't done.
    vectors: Vectors,
    /// Bytes that are done.
    done: u64,
}

/// Parts of the guest's memory, as the kernel takes them.
struct Vectors {
    all: Vec<libc::iovec>,
    /// The parts in front of this index are done.
    first: usize,
}

// SAFETY: the addresses are those of the guest's memory, which each thread of the process may use, and which stays
// mapped as long as the chain beside them.
unsafe impl Send for Vectors {}

impl Ring {
    /// A ring for at most `most` transfers of a file at a time.
    ///
    /// # Errors
    /// The kernel has no `io_uring`, or the process may not use it, or it can't be restricted (before Linux 5.10).
    pub(super) fn new(file: &impl AsFd, most: u16) -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .dontfork()
            .setup_r_disabled()
            .build(most.into())?;
        let done = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let file = file.as_fd().as_raw_fd();
        let submitter = ring.submitter();
        submitter.register_files(&[file])?;
        submitter.register_eventfd(done.as_raw_fd())?;
        submitter.register_restrictions(&mut [
            Restriction::sqe_op(opcode::Readv::CODE),
            Restriction::sqe_op(opcode::Writev::CODE),
            Restriction::sqe_op(opcode::Fsync::CODE),
            Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits()),
        ])?;
        submitter.register_enable_rings()?;
        Ok(Self {
            ring,
            done,
            under_way: Slab::with_capacity(most.into()),
            most: most.into(),
        })
    }

    /// The file that is readable when a transfer is done.
    pub(super) fn file(&self) -> &EventFd {
        &self.done
    }

    /// Makes [`file`](Self::file) unreadable.
    pub(super) fn woken(&self) {
        let _there_may_be_none = self.done.read();
    }

    /// Returns true if no other transfer can begin before one is done.
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= self.most
    }

    /// Makes a transfer begin with the next [`submit`](Self::submit). There is room for it.
    ///
    /// # Errors
    /// The kernel doesn't take what was there before.
    pub(super) fn begin(&mut self, transfer: Transfer) -> io::Result<()> {
        let under_way = UnderWay {
            vectors: Vectors::new(&transfer.pieces),
            transfer,
            done: 0,
        };
        let key = self.under_way.insert(under_way);
        self.push(key)
    }

    /// Queues what is left of a transfer.
    fn push(&mut self, key: usize) -> io::Result<()> {
        let under_way = &self.under_way[key];
        let vectors = under_way.vectors.rest();
        let (pointer, count) = (vectors.as_ptr(), vectors.len() as u32);
        let at = under_way.transfer.at + under_way.done;
        let entry = match under_way.transfer.operation {
            Operation::Read => opcode::Readv::new(FILE, pointer, count).offset(at).build(),
            Operation::Write => opcode::Writev::new(FILE, pointer, count).offset(at).build(),
            Operation::Sync => opcode::Fsync::new(FILE)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        };
        let entry = entry.user_data(key as u64);
        // SAFETY: the vectors, and the guest's memory that they name, are kept in `under_way` until the kernel has told
        // that the operation is done.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // There is an entry for each transfer that may be under way.
        pushed.map_err(io::Error::other)
    }

    /// Makes the kernel begin what was queued, if something was.
    ///
    /// # Errors
    /// The kernel doesn't take it.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.enter(0) {
            // The kernel is short of memory. The thread is woken for another try.
            Err(error) if is_busy(&error) => self.done.write(1),
            entered => entered,
        }
    }

    fn enter(&mut self, wait_for: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(wait_for) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                entered => return entered.map(drop),
            }
        }
    }

    /// The next transfer that is done, and how it went.
    ///
    /// # Errors
    /// The kernel doesn't take the rest of one.
    pub(super) fn next_done(&mut self) -> io::Result<Option<(Transfer, io::Result<()>)>> {
        loop {
            let Some(entry) = self.ring.completion().next() else {
                return Ok(None);
            };
            let key = entry.user_data() as usize;
            let result = self.under_way[key].advance(entry.result());
            match result {
                Ok(false) => {
                    self.push(key)?;
                    self.submit()?;
                }
                Ok(true) => return Ok(Some((self.under_way.remove(key).transfer, Ok(())))),
                Err(error) => return Ok(Some((self.under_way.remove(key).transfer, Err(error)))),
            }
        }
    }

    /// Waits until no transfer is under way, and forgets them.
    pub(super) fn wait_for_all(&mut self) {
        while !self.under_way.is_empty() {
            match self.enter(1).and_then(|()| self.next_done()) {
                Ok(_) => {}
                Err(error) if is_busy(&error) => {}
                Err(error) => {
                    tracing::error!("transfers of a disk can't be waited for: {error}");
                    // The kernel may still use their memory.
                    mem::forget(mem::take(&mut self.under_way));
                }
            }
        }
    }
}

/// Returns true if the kernel could not take an operation now (`io_uring_enter(2)`: EAGAIN, EBUSY).
fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}

impl UnderWay {
    /// Takes in the result of an operation, a number of bytes or an error. Returns true if all is done.
    fn advance(&mut self, result: i32) -> io::Result<bool> {
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        let count = result as usize;
        self.done += count as u64;
        if self.transfer.operation == Operation::Sync || self.done >= self.transfer.len {
            return Ok(true);
        }
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.vectors.skip(count);
        Ok(false)
    }
}

impl Vectors {
    fn new(pieces: &[Piece]) -> Self {
        let vectors = pieces.iter().map(|piece| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(piece.address),
            iov_len: piece.len,
        });
        Self {
            all: vectors.collect(),
            first: 0,
        }
    }

    fn rest(&self) -> &[libc::iovec] {
        &self.all[self.first..]
    }

    /// The first `count` bytes are done.
    fn skip(&mut self, mut count: usize) {
        while let Some(vector) = self.all.get_mut(self.first) {
            if count < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(count);
                vector.iov_len -= count;
                return;
            }
            count -= vector.iov_len;
            self.first += 1;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn ring() -> Option<Ring> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        match Ring::new(&file, 4) {
            Ok(ring) => Some(ring),
            // On such a host, disks do without it.
            Err(error) => {
                eprintln!("no io_uring here: {error}");
                None
            }
        }
    }

    /// Does an operation that isn't one of a transfer's, and returns its result.
    fn result_of(ring: &mut Ring, entry: &squeue::Entry) -> i32 {
        // SAFETY: the operations of these tests name no memory.
        unsafe { ring.ring.submission().push(entry) }.unwrap();
        ring.ring.submit_and_wait(1).unwrap();
        ring.ring.completion().next().unwrap().result()
    }

    #[test]
    fn what_was_done_of_a_transfer_is_not_done_again() {
        let pieces = [(0x1000, 10), (0x2000, 0), (0x3000, 20)];
        let mut vectors = Vectors::new(&pieces.map(|(address, len)| Piece { address, len }));
        let rest = |vectors: &Vectors| -> Vec<_> {
            let rest = vectors.rest().iter();
            rest.map(|it| (it.iov_base.addr(), it.iov_len)).collect()
        };
        assert_eq!(rest(&vectors), pieces);
        vectors.skip(4);
        assert_eq!(rest(&vectors), [(0x1004, 6), (0x2000, 0), (0x3000, 20)]);
        vectors.skip(6);
        assert_eq!(rest(&vectors), [(0x3000, 20)]);
        vectors.skip(19);
        assert_eq!(rest(&vectors), [(0x3013, 1)]);
        vectors.skip(1);
        assert_eq!(rest(&vectors), []);
    }

    #[test]
    fn a_ring_does_nothing_else_and_nothing_to_other_files() {
        let Some(mut ring) = ring() else { return };
        let other = tempfile::tempfile().unwrap();
        let other = types::Fd(other.as_raw_fd());
        for entry in [
            opcode::Nop::new().build(),
            opcode::Fsync::new(other).build(),
            opcode::Fallocate::new(FILE, 0).build(),
            opcode::Close::new(other).build(),
        ] {
            assert_eq!(result_of(&mut ring, &entry), -libc::EACCES, "{entry:?}");
        }
        let sync = opcode::Fsync::new(FILE).build();
        assert_eq!(result_of(&mut ring, &sync), 0);
        // The ring can't be given other files either.
        let refused = ring.ring.submitter().register_files_update(0, &[0]);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
