//! Text of the kernel that a change was worked out from.

use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use crate::engine::sites::prefetched::prefetched;
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;

/// Text as it was read, with the breakpoints in it. As long as guest memory holds it and the table is the same, what
/// was decoded is right.
#[derive(Debug, Default)]
pub(crate) struct TextRead {
    /// Where in guest memory, and how many bytes.
    places: Vec<(GuestPhysAddr, usize)>,
    /// The bytes of all places.
    bytes: Vec<u8>,
}

impl TextRead {
    /// Reads the text at these addresses; `None` if it isn't, without the table's breakpoints, the text that was
    /// decoded.
    pub(crate) fn of<'t>(
        table: &Table,
        memory: &dyn GuestMemory,
        decoded: impl IntoIterator<Item = (GuestVirtAddr, &'t [u8])>,
    ) -> Option<Self> {
        let mut read = Self::default();
        let all = decoded
            .into_iter()
            .all(|(at, decoded)| read.add(table, memory, at, decoded));
        all.then_some(read)
    }

    /// Adds the text at this address if it is, without the table's breakpoints, the text that was decoded. Returns true
    /// if it is.
    pub(crate) fn add(
        &mut self,
        table: &Table,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        decoded: &[u8],
    ) -> bool {
        let place = table.image.to_phys(at);
        place.is_some_and(|(place, _)| self.add_at(place, table, memory, at, decoded))
    }

    /// As [`Self::add`], of text that a site begins, which may be a module's: all of it is in one page, or in pages
    /// that follow each other.
    pub(crate) fn add_from(
        &mut self,
        table: &Table,
        memory: &dyn GuestMemory,
        site: &Site,
        decoded: &[u8],
    ) -> bool {
        self.add_at(site.phys, table, memory, site.virt, decoded)
    }

    fn add_at(
        &mut self,
        place: GuestPhysAddr,
        table: &Table,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        decoded: &[u8],
    ) -> bool {
        let mut text = vec![0; decoded.len()];
        if memory.read(place, &mut text).is_err() {
            return false;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&text);
        table.unmask(at, &mut text);
        if text != decoded {
            self.bytes.truncate(start);
            return false;
        }
        self.places.push((place, decoded.len()));
        true
    }

    /// Returns true if it is in guest memory now.
    pub(crate) fn is_in(&self, memory: &dyn GuestMemory) -> bool {
        let mut left = &self.bytes[..];
        let mut now = Vec::new();
        let mut places = prefetched(&self.places, memory, |(place, _)| *place);
        places.all(|&(place, len)| {
            let (then, rest) = left.split_at(len);
            left = rest;
            now.resize(len, 0);
            memory.read(place, &mut now).is_ok() && now == then
        })
    }
}
