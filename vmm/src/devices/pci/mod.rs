//! PCI: one bus, its functions' configuration spaces, and interrupts by message (MSI-X).
//!
//! There are no bridges, no interrupt lines and no I/O ports of functions. Each function has one
//! region of memory, which the guest may move within the window that ACPI tells it of.

mod config_space;
mod msix;
mod root;

pub(crate) use config_space::{CapabilityId, ConfigSpace, Identity};
pub(crate) use msix::{Msix, TABLE_ENTRY_LEN};
pub(crate) use root::{ConfigAddressPort, ConfigDataPort, PciFunction, PciRoot};

/// Most functions of a guest: a bus has 32 slots, and the first one is the host bridge's.
pub(crate) const MAX_FUNCTIONS: usize = 31;
