//! Code of our own below 2 GiB, where return addresses fit into a `push` as a kernel's do.

use std::io;

use super::memory;

/// Memory for code.
pub struct Text {
    base: *mut u8,
    len: usize,
}

impl Text {
    /// Makes room for `len` bytes.
    ///
    /// # Errors
    /// The system has no memory left for it, or doesn't let code be executed.
    pub fn new(len: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let base = memory::map(std::ptr::null_mut(), len, access, libc::MAP_32BIT, None)?;
        Ok(Self { base, len })
    }

    /// The address of a byte of it.
    pub fn address(&self, at: usize) -> u64 {
        assert!(at <= self.len);
        self.base as u64 + at as u64
    }

    /// Writes code there, while these bytes aren't being executed.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at);
        let start = self.base.wrapping_add(at);
        // SAFETY: it is in the mapping, as was just checked, and readable and writable.
        let there = unsafe { std::slice::from_raw_parts_mut(start, bytes.len()) };
        there.copy_from_slice(bytes);
    }

    /// Calls code in it that keeps to the C ABI.
    ///
    /// # Safety
    /// There must be such a function, which takes these arguments.
    pub unsafe fn call(&self, at: usize, arguments: [u64; 2]) -> u64 {
        assert!(at < self.len);
        let [first, second] = arguments;
        let start = self.base.wrapping_add(at);
        // SAFETY: the caller says that a function of this type is there.
        let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(start) };
        function(first, second)
    }
}

// SAFETY: changing it takes a unique reference.
unsafe impl Send for Text {}
// SAFETY: as above.
unsafe impl Sync for Text {}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and `self` was the last to refer to it.
        let _status = unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
