//! The allocator of the C library.

/// Most arenas: as many as malloc makes before it asks how many CPUs there are.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 8;

/// Keeps glibc's malloc from reading `/sys/devices/system/cpu/online` on the first thread that finds all of its first
/// arenas in use (malloc/arena.c, `arena_get2`): that may be any thread, and few may open files.
pub(super) fn settle() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it involves no memory of ours, and the process has one thread so far.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}
