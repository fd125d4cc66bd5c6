//! A guest's RAM in this process, for detours that follow pointers.

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, PhysRange};
use probe_engine::detour::{Pointers, Root};

/// Where the RAM is in physical memory: two ranges.
pub const LOW: PhysRange = range(0x10_0000, 0x10_0000);
/// See [`LOW`].
pub const HIGH: PhysRange = range(0x1_0000_0000, 0x4_0000);
/// Where the guest's direct mapping is.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

const fn range(start: u64, len: u64) -> PhysRange {
    PhysRange {
        start: GuestPhysAddr(start),
        len,
    }
}

/// RAM at [`LOW`] and [`HIGH`]. In the host's memory, the high range is as far behind the low one, so that one window
/// shows both: both are in one reservation.
#[derive(Debug)]
pub struct Ram {
    /// The address at which physical address 0 would be.
    window: u64,
    _reservation: Reservation,
}

#[derive(Debug)]
struct Reservation {
    start: usize,
    len: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: it is the whole mapping that `Ram::new` has made, and nothing refers to it any more.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}

impl Default for Ram {
    fn default() -> Self {
        Self::new()
    }
}

impl Ram {
    /// RAM that is all zero.
    ///
    /// # Panics
    /// If the system has no addresses left.
    pub fn new() -> Self {
        let len = HIGH.end().0 as usize;
        // SAFETY: a new mapping at an address of the system's choice. What isn't written takes no memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "no addresses for a guest's RAM");
        Self {
            window: start as u64,
            _reservation: Reservation {
                start: start as usize,
                len,
            },
        }
    }

    /// Returns how a detour reads it, by page tables of this many levels at its beginning.
    pub fn pointers(&self, levels: u8) -> Pointers {
        Pointers {
            window: self.window,
            ram: [LOW, HIGH],
            direct_map: DIRECT_MAP,
            levels,
            root: Root::Fixed(LOW.start.0),
        }
    }

    /// Returns true if all of a range is RAM.
    pub fn is_ram(at: u64, len: u64) -> bool {
        let is_in = |part: PhysRange| {
            at >= part.start.0 && at.checked_add(len).is_some_and(|end| end <= part.end().0)
        };
        is_in(LOW) || is_in(HIGH)
    }
}

impl GuestMemory for Ram {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        let len = into.len();
        if !Self::is_ram(at.0, len as u64) {
            return Err(MemoryError { at, len });
        }
        let from = (self.window + at.0) as *const u8;
        // SAFETY: the range is in the reservation, and nothing writes there meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len) };
        Ok(())
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        let len = from.len();
        if !Self::is_ram(at.0, len as u64) {
            return Err(MemoryError { at, len });
        }
        let to = (self.window + at.0) as *mut u8;
        // SAFETY: the range is in the reservation, and nothing reads there meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
        Ok(())
    }
}
