//! Memory of this process that is needed soon.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ptr;

/// Prefetches the line of memory at an address of this process into the processor's caches, without waiting for it.
#[inline]
pub(crate) fn prefetch(address: usize) {
    // SAFETY: it reads nothing and raises no exception, whatever the address (SDM vol. 2B, PREFETCHh).
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr::without_provenance(address)) };
}
