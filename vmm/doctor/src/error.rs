//! Why a guest gave no answer.

use std::io;

use thiserror::Error;
use vmm_sys_util::errno;

/// Bytes of a guest's memory.
pub(crate) const MEMORY_SIZE: usize = 2 << 20;
/// After this many guests that hang, no more are tried.
pub(crate) const MAX_HANGS: u32 = 3;

/// Why a guest gave no answer.
#[derive(Debug, Error)]
pub(crate) enum GuestError {
    #[error("hangs: it didn't come back in time")]
    Hangs,
    #[error("not tried, as {MAX_HANGS} guests before it hung")]
    GaveUp,
    #[error("KVM refused {call}: {source}")]
    Kvm {
        call: &'static str,
        source: errno::Error,
    },
    #[error("no {MEMORY_SIZE} bytes for a guest's memory: {0}")]
    Memory(String),
    #[error("no thread for a vCPU: {0}")]
    Thread(io::Error),
    #[error("the vCPU's thread ended with no answer, which is a fault of this program")]
    Lost,
}

/// Names the KVM call that failed.
pub(crate) fn failed(call: &'static str) -> impl Fn(errno::Error) -> GuestError {
    move |source| GuestError::Kvm { call, source }
}
