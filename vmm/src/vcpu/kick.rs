//! Driving a vCPU thread out of `KVM_RUN` with a signal.
//!
//! The handler sets `immediate_exit` in the thread's `kvm_run`, so that a
//! signal that comes just before `KVM_RUN` is not lost
//! (Documentation/virt/kvm/api.rst, `immediate_exit`).

use std::{cell::Cell, os::unix::thread::RawPthread, ptr, sync::Once};

use kvm_ioctls::VcpuFd;
use libc::{c_int, c_void, siginfo_t};
use parking_lot::Mutex;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

use crate::gate::Kick;

thread_local! {
    /// `kvm_run.immediate_exit` of the vCPU that this thread runs, or null.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// The signal that makes a vCPU's thread leave `KVM_RUN`.
pub(super) fn signal() -> c_int {
    SIGRTMIN()
}

extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let immediate_exit = IMMEDIATE_EXIT.get();
    if !immediate_exit.is_null() {
        // SAFETY: non-null only while `Kickable` lives on this very thread, and so
        // does the mapping it points into; a byte is written whole.
        unsafe { immediate_exit.write_volatile(1) };
    }
}

/// Installs the signal's handler, once a process.
pub(crate) fn install_handler() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        if let Err(error) = register_signal_handler(signal(), on_kick) {
            tracing::error!("no handler for the signal that stops vCPUs: {error}");
        }
    });
}

/// While it lives, a kick makes this thread's `KVM_RUN` return.
pub(crate) struct Kickable<'a> {
    threads: &'a KickThreads,
    index: usize,
}

impl<'a> Kickable<'a> {
    /// Makes the calling thread the one that runs `vcpu`, number `index`.
    /// `vcpu`'s mapping must outlive the returned value, which the caller
    /// ensures by dropping it first.
    pub(crate) fn new(threads: &'a KickThreads, index: usize, vcpu: &mut VcpuFd) -> Self {
        IMMEDIATE_EXIT.set(&raw mut vcpu.get_kvm_run().immediate_exit);
        // SAFETY: pthread_self has no conditions.
        let this = unsafe { libc::pthread_self() };
        threads.threads[index].lock().replace(this as RawPthread);
        Self { threads, index }
    }
}

impl Drop for Kickable<'_> {
    fn drop(&mut self) {
        self.threads.threads[self.index].lock().take();
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }
}

/// The threads that run vCPUs now, by vCPU.
#[derive(Debug)]
pub(crate) struct KickThreads {
    threads: Vec<Mutex<Option<RawPthread>>>,
}

impl KickThreads {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self {
            threads: (0..vcpus).map(|_| Mutex::new(None)).collect(),
        }
    }
}

impl Kick for std::sync::Arc<KickThreads> {
    fn kick(&self, index: usize) {
        let thread = self.threads[index].lock();
        if let Some(thread) = *thread {
            // SAFETY: the thread is alive: it takes itself out of its entry, whose
            // lock is held here, before it ends.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, signal()) };
        }
    }
}
