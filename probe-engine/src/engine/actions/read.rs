//! Reading guest memory on a user's behalf.

use guest_state::x86_64::paging::{self, PageTables};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use crate::engine::Engine;

impl Engine {
    /// Reads guest memory by these page tables, or the kernel's where those don't map an address of the kernel's. What
    /// is ours in the kernel's text, or a module's, isn't seen. Returns the number of bytes up to the first that can't
    /// be read.
    ///
    /// No change of probes may be made meanwhile.
    pub fn read_memory(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        at: GuestVirtAddr,
        into: &mut [u8],
    ) -> usize {
        let read = paging::read_virt_or(memory, tables, self.kernel_root(), at, into);
        let done = read.map_or_else(|fault| fault.done, |()| into.len());
        self.table().unmask(at, &mut into[..done]);
        done
    }

    /// Takes what is ours in the text out of memory that was read at a physical address.
    ///
    /// No change of probes may have been made since it was read.
    pub fn unmask_physical(&self, at: GuestPhysAddr, bytes: &mut [u8]) {
        self.table().unmask_physical(at, bytes);
    }
}
