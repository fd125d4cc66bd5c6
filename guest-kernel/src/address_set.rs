//! Addresses in the text, as a set.

use guest_state::GuestVirtAddr;

/// A set of addresses.
#[derive(Debug, Clone, Default)]
pub struct AddressSet {
    /// Sorted.
    addresses: Vec<GuestVirtAddr>,
}

impl AddressSet {
    /// The set of these addresses, in any order.
    pub fn new(addresses: impl IntoIterator<Item = GuestVirtAddr>) -> Self {
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        Self { addresses }
    }

    /// Returns true if an address is in it.
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
