//! The lab: upstream KVM on any machine, whatever its own `/dev/kvm` can do.
//!
//! The machine is an emulator with some faults fixed: QEMU, an AMD CPU with SVM, or Bochs, an Intel CPU with VMX (see
//! [`Emulator`]). In it Debian's stock kernel with its own `kvm-amd` or `kvm-intel` is the host (L1), and a program of
//! ours runs there as root and boots guests (L2). All that takes long is made once and kept in a cache outside the
//! clone.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let [program] = lab::static_programs([lab::Program::bin("e2e", "e2e")])?;
//! let mut lab = lab::Lab::new(vec!["/bin/e2e".into(), "--all".into()]);
//! lab.files.push((program, "/bin/e2e".into()));
//! let run = lab.run()?;
//! println!("{:?}, {} bytes of results", run.exit, run.results.len());
//! # Ok(()) }
//! ```

mod apt;
mod apt_sources;
mod bochs;
mod cache;
mod cargo;
mod cpio;
mod debian_disk;
mod emulator;
mod initramfs;
mod kernels;
mod machine;
mod packages;
mod process;
mod progress;
mod pypi;
mod qemu;
mod report;
mod test_kernel;
mod tool;

pub use apt::AptError;
pub use bochs::{Bochs, BochsError, ensure_bochs};
pub use cache::{CacheError, cache_dir, key, put_in_place};
pub use cargo::{BuildError, Program, static_programs};
pub use debian_disk::{DebianDiskError, ensure_debian_disk};
pub use emulator::{BochsCpu, Emulator};
pub use initramfs::Initramfs;
pub use kernels::{Kernel, KernelError, Kernels, ModuleError, ensure_kernels};
pub use lab_init::{Exit, FrameError};
pub use machine::{Lab, LabError, LabRun};
pub use packages::{PackageError, ensure_package};
pub use pypi::{PypiError, ensure_pypi, run_python};
pub use qemu::{Qemu, QemuError, ensure_qemu};
pub use test_kernel::{TestKernel, TestKernelError, ensure_test_kernel};
pub use tool::ToolError;
