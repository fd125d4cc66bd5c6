//! What a vCPU is and holds before its first instruction.

mod cpuid;
mod registers;

pub(crate) use cpuid::configure_cpuid;
pub(crate) use registers::{configure_boot_cpu, configure_common};
use thiserror::Error;

/// A step of a vCPU's set-up that KVM refused.
#[derive(Debug, Error)]
#[error("KVM refused to set the {what} of a vCPU: {cause}; `vmprobe doctor` tells what this KVM can")]
pub struct CpuError {
    what: &'static str,
    cause: kvm_ioctls::Error,
}

fn refused(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> CpuError {
    move |cause| CpuError { what, cause }
}
