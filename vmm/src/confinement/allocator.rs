//! The allocator of the C library. Two of its decisions take files, which few threads may open, and any thread may be
//! the first that comes to them. So they are made before threads are restricted.

/// Most arenas: as many as malloc makes before it asks how many CPUs there are.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 8;

/// Keeps glibc's malloc from reading `/sys/devices/system/cpu/online` when its first arenas are all in use
/// (malloc/arena.c, `arena_get2`). Call it before the process has other threads.
pub(super) fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it involves no memory of ours, and the process has one thread so far.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Has glibc's malloc read `/proc/sys/vm/overcommit_memory`. It does so once, when a thread's arena gives memory back
/// for the first time (malloc/arena.c, `shrink_heap`; malloc-sysdep.h, `check_may_shrink_heap`). Call it on a thread
/// other than the main one, which has an arena of another kind.
pub(super) fn give_memory_back() {
    // Each block is too small for a mapping of its own (`M_MMAP_THRESHOLD`, 128 KiB). Together they are more than an
    // arena keeps (`M_TRIM_THRESHOLD` and `M_TOP_PAD`, 128 KiB each).
    let blocks = [(); 8].map(|()| Vec::<u8>::with_capacity(100 << 10));
    drop(std::hint::black_box(blocks));
}
