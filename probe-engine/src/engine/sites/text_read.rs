//! Text of the kernel that a change was worked out from.

use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use crate::engine::sites::table::Table;

/// Text as it was read, with breakpoints and all: as long as it is in guest memory and the table is the same, what
/// was decoded is right.
#[derive(Debug, Default)]
pub(crate) struct TextRead {
    /// Where in guest memory, and how many bytes.
    places: Vec<(GuestPhysAddr, usize)>,
    /// The bytes of all places.
    bytes: Vec<u8>,
}

impl TextRead {
    /// The text at these addresses, if without the table's breakpoints it is this that was decoded.
    pub(crate) fn of<'t>(
        table: &Table,
        memory: &dyn GuestMemory,
        decoded: impl IntoIterator<Item = (GuestVirtAddr, &'t [u8])>,
    ) -> Option<Self> {
        let mut read = Self::default();
        for (at, decoded) in decoded {
            let (place, _) = table.image.as_ref()?.to_phys(at)?;
            let start = read.bytes.len();
            read.bytes.resize(start + decoded.len(), 0);
            memory.read(place, &mut read.bytes[start..]).ok()?;
            let mut unmasked = read.bytes[start..].to_vec();
            table.unmask(at, &mut unmasked);
            if unmasked != decoded {
                return None;
            }
            read.places.push((place, decoded.len()));
        }
        Some(read)
    }

    /// Returns true if it is in guest memory now.
    pub(crate) fn is_in(&self, memory: &dyn GuestMemory) -> bool {
        let mut left = &self.bytes[..];
        let mut now = Vec::new();
        self.places.iter().all(|&(place, len)| {
            let (then, rest) = left.split_at(len);
            left = rest;
            now.resize(len, 0);
            memory.read(place, &mut now).is_ok() && now == then
        })
    }
}
