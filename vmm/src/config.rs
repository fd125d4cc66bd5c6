//! The configuration of a VM, and the errors of making one.

use std::{io, path::PathBuf};

use guest_state::VcpuError;
use thiserror::Error;

use crate::{
    devices::{
        bus::BusError,
        pci::MAX_FUNCTIONS,
        virtio::{DeviceError, Devices},
    },
    file::{self, FileError},
    host_path::HostPath,
    kvm::KvmError,
    ram::RamError,
    unpack::UnpackError,
    x86_64::{
        boot::{
            BootMethod, LoadError,
            bzimage::{KernelFile, KernelFileError, read_kernel_with},
        },
        cpu::CpuError,
    },
};

/// Fewest MiB of memory that a VM can have.
pub const MIN_MEMORY_MIB: u64 = 64;
/// Most vCPUs that a VM can have.
pub const MAX_VCPUS: u32 = 64;
/// Most NUMA nodes that a VM can have.
pub const MAX_NODES: u32 = 8;
/// The longest kernel or initramfs for callers that have no limit of their own, in bytes: a vmlinux with all its debug
/// information has half of it.
pub const MAX_FILE: u64 = 2 << 30;

/// A VM to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// A bzImage or an ELF vmlinux.
    pub kernel: HostPath,
    /// An initramfs for it.
    pub initramfs: Option<HostPath>,
    /// The kernel's command line. Nothing is added.
    pub cmdline: String,
    /// Guest memory in MiB, at least [`MIN_MEMORY_MIB`].
    pub memory_mib: u64,
    /// Whether it consists of the host's huge pages of 2 MiB, which have to be free.
    pub huge_pages: bool,
    /// Nodes that memory and vCPUs are divided among, for NUMA: 1 to [`MAX_NODES`].
    pub numa_nodes: u32,
    /// 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// How the kernel is started.
    pub boot: BootMethod,
    /// The longest kernel or initramfs that is read, in bytes.
    pub max_file: u64,
    /// The folder where kernels that were unpacked are kept for the next time. It is made if it isn't there. None: they
    /// are unpacked each time.
    pub kernel_cache: Option<PathBuf>,
    /// What it has besides a console.
    pub devices: Devices,
}

/// Why a VM can't be made. Nothing of the VM is left then.
#[derive(Debug, Error)]
pub enum CreateError {
    /// Too little memory.
    #[error("{0} MiB of memory is too little for a guest: {MIN_MEMORY_MIB} MiB is the least")]
    Memory(u64),
    /// No or too many vCPUs.
    #[error("a guest has 1 to {MAX_VCPUS} vCPUs, not {0}")]
    Vcpus(u32),
    /// More vCPUs than the host's KVM has.
    #[error("a guest has at most {most} vCPUs on this host's KVM, not {vcpus}")]
    HostVcpus {
        /// What was asked for.
        vcpus: u32,
        /// What there can be (`KVM_CAP_MAX_VCPUS`).
        most: usize,
    },
    /// No or too many NUMA nodes.
    #[error("a guest has 1 to {MAX_NODES} NUMA nodes, not {0}")]
    Nodes(u32),
    /// Too little for each NUMA node.
    #[error(
        "{memory} MiB of memory and {vcpus} vCPUs are too little for {nodes} NUMA nodes: each has a vCPU and \
         {MIN_MEMORY_MIB} MiB at least"
    )]
    SmallNodes {
        /// Memory in MiB.
        memory: u64,
        /// vCPUs.
        vcpus: u32,
        /// Nodes.
        nodes: u32,
    },
    /// More devices than a bus has slots for.
    #[error("a guest has at most {MAX_FUNCTIONS} devices on its PCI bus, not {0}")]
    Devices(usize),
    /// A device's file or folder can't be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The host has no events for a device.
    #[error("the host has no events for the guest's devices: {0}")]
    Events(io::Error),
    /// A file can't be read.
    #[error("the {what} {path} can't be read: {cause}")]
    File {
        /// "kernel" or "initramfs".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        cause: FileError,
    },
    /// A file without content, or one whose content the host's kernel makes at each read.
    #[error(
        "the {what} {path} is empty (as far as its length tells): leave it out, or give a file with \
         content"
    )]
    Empty {
        /// "initramfs".
        what: &'static str,
        /// The file.
        path: PathBuf,
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
    /// A bzImage did not unpack itself.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// KVM refused a vCPU's set-up.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// KVM refused something to a vCPU.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// A device can't be attached.
    #[error(transparent)]
    Bus(#[from] BusError),
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
    /// For `map_err`: `what` names what KVM refused, as in "create a vCPU".
    pub(crate) fn refused(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |error| Self::Refused {
            what,
            cause: io::Error::from_raw_os_error(error.errno()),
        }
    }

    /// The field of [`VmConfig`] that is to blame, where it is one.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Memory(_) => Some("memory_mib"),
            Self::Ram(RamError::HugePages { .. }) => Some("huge_pages"),
            Self::Ram(_) | Self::Arena { .. } => Some("memory_mib"),
            Self::Nodes(_) | Self::SmallNodes { .. } => Some("numa_nodes"),
            Self::Vcpus(_) | Self::HostVcpus { .. } => Some("vcpus"),
            Self::File { what, .. } | Self::Empty { what, .. } => Some(what),
            Self::Kernel { .. } => Some("kernel"),
            Self::Load(error) => Some(error.field()),
            Self::Unpack(UnpackError::TooLong { .. } | UnpackError::Ended { .. }) => Some("kernel"),
            Self::Devices(_) => Some("devices"),
            Self::Device(error) => Some(error.field()),
            Self::Kvm(_)
            | Self::Cpu(_)
            | Self::Vcpu(_)
            | Self::Unpack(_)
            | Self::Bus(_)
            | Self::Events(_)
            | Self::Refused { .. } => None,
        }
    }
}

impl VmConfig {
    pub(crate) fn validate(&self) -> Result<(), CreateError> {
        if self.memory_mib < MIN_MEMORY_MIB {
            return Err(CreateError::Memory(self.memory_mib));
        }
        let devices = self.devices.count();
        if devices > MAX_FUNCTIONS {
            return Err(CreateError::Devices(devices));
        }
        if !(1..=MAX_VCPUS).contains(&self.vcpus) {
            return Err(CreateError::Vcpus(self.vcpus));
        }
        let (memory, vcpus, nodes) = (self.memory_mib, self.vcpus, self.numa_nodes);
        if !(1..=MAX_NODES).contains(&nodes) {
            return Err(CreateError::Nodes(nodes));
        }
        if nodes > 1 && (vcpus < nodes || memory / u64::from(nodes) < MIN_MEMORY_MIB) {
            return Err(CreateError::SmallNodes {
                memory,
                vcpus,
                nodes,
            });
        }
        Ok(())
    }
}

impl VmConfig {
    /// Reads its kernel, and unpacks it if it is a bzImage.
    ///
    /// # Errors
    /// What is wrong with the configuration, or with the file.
    pub fn read_kernel(&self) -> Result<KernelFile, CreateError> {
        self.validate()?;
        let bytes = self.read("kernel", &self.kernel)?;
        read_kernel_with(bytes, self.kernel_cache.as_deref()).map_err(|cause| CreateError::Kernel {
            path: self.kernel.name().to_owned(),
            cause,
        })
    }

    /// The bytes of one of its files.
    pub(crate) fn read(&self, what: &'static str, path: &HostPath) -> Result<Vec<u8>, CreateError> {
        file::read(path, self.max_file).map_err(|cause| CreateError::File {
            what,
            path: path.name().to_owned(),
            cause,
        })
    }

    /// The bytes of its initramfs, if it has one.
    pub(crate) fn read_initramfs(&self) -> Result<Option<Vec<u8>>, CreateError> {
        const WHAT: &str = "initramfs";
        let Some(path) = &self.initramfs else {
            return Ok(None);
        };
        let bytes = self.read(WHAT, path)?;
        if bytes.is_empty() {
            return Err(CreateError::Empty {
                what: WHAT,
                path: path.name().to_owned(),
            });
        }
        Ok(Some(bytes))
    }
}
