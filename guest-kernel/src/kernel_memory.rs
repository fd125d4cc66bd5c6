//! Reading numbers and strings of the guest kernel's structures.

use guest_state::x86_64::paging::{PageTables, VirtFault, read_virt, read_virt_u64};
use guest_state::{GuestMemory, GuestVirtAddr};

/// Guest memory by virtual addresses.
#[derive(Clone, Copy)]
pub(crate) struct KernelMemory<'a> {
    pub(crate) memory: &'a dyn GuestMemory,
    pub(crate) tables: PageTables,
}

impl KernelMemory<'_> {
    pub(crate) fn bytes(&self, at: GuestVirtAddr, len: usize) -> Result<Vec<u8>, VirtFault> {
        let mut bytes = vec![0; len];
        read_virt(self.memory, self.tables, at, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&self, at: GuestVirtAddr) -> Result<[u8; N], VirtFault> {
        let mut bytes = [0; N];
        read_virt(self.memory, self.tables, at, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&self, at: GuestVirtAddr) -> Result<u32, VirtFault> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    pub(crate) fn u64(&self, at: GuestVirtAddr) -> Result<u64, VirtFault> {
        read_virt_u64(self.memory, self.tables, at)
    }

    pub(crate) fn address(&self, at: GuestVirtAddr) -> Result<GuestVirtAddr, VirtFault> {
        Ok(GuestVirtAddr(self.u64(at)?))
    }

    /// Reads a name that ends in a NUL before `max` bytes; `None` if it is longer, empty, or not of
    /// graphic characters.
    pub(crate) fn name(&self, at: GuestVirtAddr, max: usize) -> Result<Option<String>, VirtFault> {
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
