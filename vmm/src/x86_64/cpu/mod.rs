//! The state in which a vCPU starts: its CPUID leaves and its registers.

mod cpuid;
mod initial_state;

pub(crate) use cpuid::{Topology, configure_cpuid, has_gigabyte_pages, physical_address_bits};
pub(crate) use initial_state::{configure_boot_cpu, configure_common};

use thiserror::Error;

/// Why a vCPU can't be set up.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CpuError {
    /// KVM refused what every KVM does.
    #[error(
        "KVM refused to {what} of a new vCPU: {cause}; run `vmprobe doctor` to see what this KVM \
         can do"
    )]
    Refused {
        /// What was tried.
        what: &'static str,
        /// The host's own words.
        cause: String,
    },
    /// KVM tells more CPUID leaves than it takes.
    #[error(
        "this KVM describes its processor in {count} CPUID leaves, more than it takes back; \
         report this with the output of `vmprobe doctor`"
    )]
    TooManyLeaves {
        /// How many.
        count: usize,
    },
}

impl CpuError {
    /// For `map_err`: `what` names the operation, as in "set the registers".
    fn refused<E: ToString>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::Refused {
            what,
            cause: cause.to_string(),
        }
    }
}
