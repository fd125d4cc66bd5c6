//! Reading numbers and strings of the guest's structures.

use guest_state::x86_64::paging::{PageTables, VirtFault, read_virt};
use guest_state::{GuestMemory, GuestVirtAddr};

/// Guest memory by virtual addresses.
#[derive(Clone, Copy)]
pub(super) struct Guest<'a> {
    pub(super) memory: &'a dyn GuestMemory,
    pub(super) tables: PageTables,
}

impl Guest<'_> {
    pub(super) fn bytes(&self, at: GuestVirtAddr, len: usize) -> Result<Vec<u8>, VirtFault> {
        let mut bytes = vec![0; len];
        read_virt(self.memory, self.tables, at, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&self, at: GuestVirtAddr) -> Result<u32, VirtFault> {
        let mut bytes = [0; 4];
        read_virt(self.memory, self.tables, at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn address(&self, at: GuestVirtAddr) -> Result<GuestVirtAddr, VirtFault> {
        let mut bytes = [0; 8];
        read_virt(self.memory, self.tables, at, &mut bytes)?;
        Ok(GuestVirtAddr(u64::from_le_bytes(bytes)))
    }

    /// A name that ends in a NUL before `max` bytes; `None` if it is longer, empty, or not of
    /// graphic characters.
    pub(super) fn name(&self, at: GuestVirtAddr, max: usize) -> Result<Option<String>, VirtFault> {
        /// Most names take one read.
        const PIECE: usize = 32;
        let mut name = Vec::new();
        while name.len() < max {
            let mut piece = [0; PIECE];
            let len = PIECE.min(max - name.len());
            let read = read_virt(
                self.memory,
                self.tables,
                at.wrapping_add(name.len() as u64),
                &mut piece[..len],
            );
            // The name may end right before memory that isn't there.
            let got = read.err().map_or(len, |fault| fault.done);
            if let Some(end) = piece[..got].iter().position(|byte| *byte == 0) {
                name.extend(&piece[..end]);
                let graphic = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
                return Ok(String::from_utf8(name).ok().filter(|_| graphic));
            }
            read?;
            name.extend(&piece[..len]);
        }
        Ok(None)
    }
}
