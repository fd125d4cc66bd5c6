//! What a VM is made of, and why it can't be made.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::{
    boot::{BootMethod, LoadError, bzimage::KernelFileError},
    cpu::CpuError,
    kvm::KvmError,
    ram::RamError,
    vcpu::VcpuAccessError,
};

/// Fewest MiB of memory that a VM can have.
pub const MIN_MEMORY_MIB: u64 = 64;
/// Most vCPUs that a VM can have.
pub const MAX_VCPUS: u32 = 8;
/// Largest kernel or initramfs file that is read, in bytes.
const MAX_FILE: u64 = 4 << 30;

/// A VM to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// A bzImage or an ELF vmlinux.
    pub kernel: PathBuf,
    /// An initramfs for it.
    pub initramfs: Option<PathBuf>,
    /// The kernel's command line. Nothing is added but what
    /// [`BootMethod::BzImage`] needs.
    pub cmdline: String,
    /// Guest memory in MiB, at least [`MIN_MEMORY_MIB`].
    pub memory_mib: u64,
    /// 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// How the kernel is started.
    pub boot: BootMethod,
}

/// Why a VM can't be made. Nothing of it is left then.
#[derive(Debug, Error)]
pub enum CreateError {
    /// Too little memory.
    #[error("{0} MiB of memory is too little for a guest: {MIN_MEMORY_MIB} MiB is the least")]
    Memory(u64),
    /// No or too many vCPUs.
    #[error("a guest has 1 to {MAX_VCPUS} vCPUs, not {0}")]
    Vcpus(u32),
    /// A file can't be read.
    #[error("the {what} {path} can't be read: {cause}")]
    File {
        /// "kernel" or "initramfs".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The kernel file is no kernel that can be booted.
    #[error("{path} can't be booted: {cause}")]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: KernelFileError,
    },
    /// KVM can't be used.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// Guest memory can't be had.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// Guest memory and the arena above it don't fit into the address space.
    #[error(
        "guest memory and what the monitor keeps above it end at {end:#x}, but this KVM's guests \
         have {bits} bits of physical address; ask for less memory"
    )]
    Arena {
        /// Where they end.
        end: u64,
        /// What CPUID leaf 0x80000008 tells the guest.
        bits: u32,
    },
    /// Kernel, initramfs and command line can't be put into guest memory.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// KVM refused a vCPU's set-up.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// KVM refused something to a vCPU.
    #[error(transparent)]
    Vcpu(#[from] VcpuAccessError),
    /// KVM refused a part of the VM.
    #[error("KVM refused to {what}: {cause}")]
    Refused {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

impl CreateError {
    /// The field of [`VmConfig`] that is to blame, where it is one.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Memory(_) => Some("memory_mib"),
            Self::Ram(_) | Self::Arena { .. } => Some("memory_mib"),
            Self::Vcpus(_) => Some("vcpus"),
            Self::File { what, .. } => Some(what),
            Self::Kernel { .. } => Some("kernel"),
            Self::Load(error) => Some(error.field()),
            Self::Kvm(_) | Self::Cpu(_) | Self::Vcpu(_) | Self::Refused { .. } => None,
        }
    }
}

impl VmConfig {
    pub(crate) fn validate(&self) -> Result<(), CreateError> {
        if self.memory_mib < MIN_MEMORY_MIB {
            return Err(CreateError::Memory(self.memory_mib));
        }
        if !(1..=MAX_VCPUS).contains(&self.vcpus) {
            return Err(CreateError::Vcpus(self.vcpus));
        }
        Ok(())
    }
}

/// Reads a whole regular file of reasonable size.
pub(crate) fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, CreateError> {
    let read = || -> io::Result<Vec<u8>> {
        // A FIFO would block in open().
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it isn't a regular file"));
        }
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        if size > MAX_FILE {
            return Err(io::Error::other(format!(
                "{size} bytes is more than {MAX_FILE}"
            )));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|cause| CreateError::File {
        what,
        path: path.to_owned(),
        cause,
    })
}
