//! Virtio devices, on PCI (Virtual I/O Device Version 1.2; section numbers below are of it).
//!
//! [`device`] says what a device is. [`pci`] is the function that the guest sees: it negotiates, and
//! starts the device's [`worker`], a thread that sleeps until the guest rings a queue's doorbell or a
//! file of the device's is ready. A new device is a file or folder here that implements
//! [`VirtioDevice`], and a line in [`attach`].
//!
//! Queues and all that they point to are a hostile guest's: nothing is read twice where the two must
//! agree, every length is checked, and what makes no sense ends the device, not the monitor.

mod attach;
mod block;
mod common_config;
mod console;
mod device;
mod device_config;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a driver for tests, of which some need what others don't"
)]
mod driver;
mod entropy;
mod fs;
mod interrupts;
mod net;
mod pci;
mod queue;
mod rate;
#[cfg(feature = "testing")]
#[allow(clippy::expect_used, reason = "a property that doesn't hold panics")]
pub mod testing;
mod vsock;
mod wanted;
mod worker;

pub use attach::DeviceError;
pub(crate) use attach::Ends;
pub(crate) use attach::{VirtioDevices, attach, open};
pub use block::{Disk, DiskError, DiskFormat};
pub use console::{ConsoleSize, VirtioConsole};
pub use fs::{Share, ShareError, ShareMode};
pub use net::{Mac, NetBackend, NetError, Network, NoMac};
pub use rate::RateLimit;
pub use vsock::{Vsock, VsockError};
pub use wanted::Devices;
