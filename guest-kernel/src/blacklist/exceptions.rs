//! The instructions that the kernel expects to fault.

use guest_state::GuestVirtAddr;

use super::BlacklistError;
use super::format::Format;
use super::image::Reader;
use crate::btf::Btf;
use crate::symbols::Symbols;
use crate::symbols::image::Image;

/// The addresses of the instructions with a fix-up (`__ex_table`): where one faults, the kernel
/// looks its address up and goes on elsewhere.
#[derive(Debug, Clone, Default)]
pub struct ExceptionTable {
    /// Sorted.
    addresses: Vec<GuestVirtAddr>,
}

impl ExceptionTable {
    /// The exception table of an image; empty where there is none.
    ///
    /// # Errors
    /// See [`BlacklistError`].
    pub fn from_image(
        image: &[u8],
        symbols: &Symbols,
        btf: Option<&Btf>,
    ) -> Result<Self, BlacklistError> {
        let image = Image::parse(image)?;
        let reader = Reader {
            image: &image,
            symbols,
        };
        let Some(table) = reader.bytes("__start___ex_table", "__stop___ex_table")? else {
            return Ok(Self::default());
        };
        let places = reader.places(table, Format::exception(btf))?;
        Ok(Self::new(places.into_iter().map(|place| place.start)))
    }

    /// A table of these instructions, in any order.
    pub fn new(addresses: impl IntoIterator<Item = GuestVirtAddr>) -> Self {
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        Self { addresses }
    }

    /// Whether the instruction at an address has a fix-up.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}
