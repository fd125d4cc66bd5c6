//! The instructions that the kernel expects to fault.

use guest_state::GuestVirtAddr;

/// The addresses of the instructions with a fix-up (`__ex_table`): where one faults, the kernel
/// looks its address up and continues at the fix-up.
#[derive(Debug, Clone, Default)]
pub struct ExceptionTable {
    /// Sorted.
    addresses: Vec<GuestVirtAddr>,
}

impl ExceptionTable {
    /// Makes a table of these instructions, in any order.
    pub fn new(addresses: impl IntoIterator<Item = GuestVirtAddr>) -> Self {
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        Self { addresses }
    }

    /// Returns true if the instruction at an address has a fix-up.
    pub fn contains(&self, address: GuestVirtAddr) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// The addresses, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = GuestVirtAddr> {
        self.addresses.iter().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}
