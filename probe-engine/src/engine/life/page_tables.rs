//! The kernel's own page tables.

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestPhysAddr, StoppedGuest, VcpuId};

use crate::engine::Engine;

/// The kernel's top page table (`arch/x86/kernel/head_64.S`).
const KERNEL_PAGE_TABLE: &str = "init_top_pgt";

impl Engine {
    /// The kernel's own top page table; empty until the kernel has set it up.
    pub fn kernel_root(&self) -> Option<GuestPhysAddr> {
        let symbol = self.kernel.symbols.by_name(KERNEL_PAGE_TABLE).next()?;
        let table = self.table();
        let (phys, _) = table.image.to_phys(symbol.address)?;
        Some(phys)
    }

    /// Learns the page tables that modules are read by while the guest runs.
    pub fn learn_page_tables(&self, guest: &dyn StoppedGuest) {
        self.kernel_tables(guest);
    }

    /// The kernel's own page tables, then those that the vCPUs use: until the
    /// kernel has set its own up, only these map its stacks.
    ///
    /// The first is remembered in [`LastTables`](crate::engine::life::last_tables::LastTables), to read memory by it
    /// while the guest runs.
    pub(crate) fn kernel_tables(&self, guest: &dyn StoppedGuest) -> Vec<PageTables> {
        let used: Vec<_> = (0..guest.vcpus())
            .map(VcpuId)
            .filter_map(|vcpu| guest.control(vcpu).ok())
            .filter_map(|control| control.page_tables().ok())
            .collect();
        let own = self
            .kernel_root()
            .zip(used.first())
            .map(|(root, used)| PageTables { root, ..*used });
        let tables: Vec<_> = own.into_iter().chain(used).collect();
        if let Some(first) = tables.first() {
            self.last_tables.set(*first);
        }
        tables
    }
}
