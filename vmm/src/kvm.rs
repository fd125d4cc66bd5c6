//! Opening /dev/kvm, and what must be there.

use std::{io, path::Path};

use kvm_ioctls::{Cap, Kvm};
use thiserror::Error;

/// Where KVM is.
pub(crate) const DEVICE: &str = "/dev/kvm";

/// Why KVM can't be used.
#[derive(Debug, Error)]
pub enum KvmError {
    /// There is no device.
    #[error(
        "there is no {DEVICE}: load kvm-intel or kvm-amd, switch virtualization on in the \
         firmware, or pass the device to this container (`--device {DEVICE}`); \
         `vmprobe doctor` tells more"
    )]
    Missing,
    /// The device may not be opened.
    #[error(
        "{DEVICE} may not be opened by this user: join the group that owns it (usually `kvm`) or \
         run as root"
    )]
    NoPermission,
    /// The device can't be opened for another reason.
    #[error("{DEVICE} can't be opened: {0}")]
    Open(io::Error),
    /// What answers is no KVM or too old a one.
    #[error("{DEVICE} speaks version {0} of the KVM API, not 12: it isn't a usable KVM")]
    ApiVersion(i32),
    /// Something that no stock KVM of the last years lacks.
    #[error("this KVM lacks {0}: a host kernel of 5.10 or newer has it")]
    Lacks(&'static str),
}

/// Opens KVM and checks that it can host a guest and its probes.
pub(crate) fn open() -> Result<Kvm, KvmError> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT => KvmError::Missing,
        libc::EACCES | libc::EPERM => KvmError::NoPermission,
        _ if !Path::new(DEVICE).exists() => KvmError::Missing,
        errno => KvmError::Open(io::Error::from_raw_os_error(errno)),
    })?;
    let version = kvm.get_api_version();
    if version != 12 {
        return Err(KvmError::ApiVersion(version));
    }
    let needed = [
        (
            Cap::Irqchip,
            "an in-kernel interrupt controller (KVM_CAP_IRQCHIP)",
        ),
        (Cap::Irqfd, "interrupts by event (KVM_CAP_IRQFD)"),
        (
            Cap::UserMemory,
            "guest memory of a process (KVM_CAP_USER_MEMORY)",
        ),
        (
            Cap::ImmediateExit,
            "a way to stop a vCPU without a race (KVM_CAP_IMMEDIATE_EXIT)",
        ),
        (
            Cap::SetGuestDebug,
            "debugging of guests (KVM_CAP_SET_GUEST_DEBUG)",
        ),
    ];
    match needed
        .into_iter()
        .find(|(cap, _)| !kvm.check_extension(*cap))
    {
        Some((_, name)) => Err(KvmError::Lacks(name)),
        None => Ok(kvm),
    }
}
