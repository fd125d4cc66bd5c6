//! A small KVM virtual machine monitor.
//!
//! It boots a Linux kernel ([`Vm`]), runs its vCPUs, and turns what stops them
//! for a debugger's reason into [`Trap`](guest_state::Trap)s, on which a
//! [`TrapHandler`](guest_state::TrapHandler) decides. It can stop all vCPUs
//! ([`Vm::stopped`]), which is when a guest's text may be changed. It doesn't know
//! what a probe is.
//!
//! All unsafe code of the product is in this crate and in the doctor beside it,
//! which measures what a host's KVM does.

mod config;
pub mod confinement;
mod devices;
mod ending;
mod exits;
mod file;
mod gate;
mod host_path;
mod kvm;
mod parts;
mod ram;
mod stopped_vm;
mod stops;
mod unpack;
mod vcpu;
mod vm;
mod x86_64;

pub use config::{CreateError, MAX_FILE, MAX_NODES, MAX_VCPUS, MIN_MEMORY_MIB, VmConfig};
pub use devices::bus::BusError;
pub use devices::console::{Console, ConsoleChunk, ConsoleSubscription};
#[cfg(feature = "testing")]
pub use devices::virtio::testing;
pub use devices::virtio::{
    ConsoleSize, DeviceError, Devices, Disk, DiskError, DiskFormat, Mac, NetBackend, NetError,
    Network, NoMac, RateLimit, Share, ShareError, ShareMode, VirtioConsole, Vsock, VsockError,
};
pub use ending::Ending;
pub use exits::ExitCounts;
pub use file::{FileError, read as read_file};
pub use host_path::HostPath;
pub use kvm::KvmError;
pub use ram::{GuestRam, RamError};
pub use stopped_vm::StoppedVm;
pub use stops::{RECENT_STOPS, RecentStop, STOP_LENGTHS, Stops};
pub use unpack::UnpackError;
pub use vm::{StartError, StateError, Vm, VmState};
pub use x86_64::boot::{self, BootMethod, LoadError};
pub use x86_64::cpu::CpuError;
pub use x86_64::vcpu::clock::ClockSample;
pub use x86_64::vcpu::fpu::FpuRegisters;
pub use x86_64::vcpu::registers::SegmentRegisters;
