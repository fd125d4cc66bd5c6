//! What an address in a module is called.

use guest_state::{GuestMemory, GuestVirtAddr};

use crate::engine::Engine;
use crate::engine::hits::known_modules::{ModuleSymbol, ModulesOf};

impl Engine {
    /// The modules of the guest, by the page tables that it had when it last stood still.
    pub(crate) fn modules_of<'a>(&'a self, memory: &'a dyn GuestMemory) -> Option<ModulesOf<'a>> {
        Some(ModulesOf {
            reader: self.kernel.modules.as_ref().ok()?,
            memory,
            tables: self.last_tables.get()?,
        })
    }

    /// Returns true if the guest's list of modules can be read while it runs, by the page tables that it had when it
    /// last stood still.
    pub fn can_read_modules(&self, memory: &dyn GuestMemory) -> bool {
        self.modules_of(memory)
            .is_some_and(|modules| modules.reader.loaded(memory, modules.tables).is_ok())
    }

    /// The function of a loaded module that an address is in.
    pub fn resolve_in_module(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
    ) -> Option<ModuleSymbol> {
        let keeps = self.table().waits_for_modules();
        self.known_modules
            .resolve(self.modules_of(memory)?, at, keeps)
    }
}
