//! What is read of the guest's modules while it runs.

use std::sync::Arc;

use guest_kernel::btf::Btf;
use guest_kernel::modules::{Module, ModuleFunction};
use guest_state::GuestVirtAddr;
use probe_engine::engine::ModuleSymbol;
use probe_engine::probe::ProbeKind;
use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::Machine;
use crate::status;

impl Machine {
    /// The types of a loaded module, with those of its kernel.
    pub(super) fn module_types(&self, module: &str) -> Option<Arc<Btf>> {
        self.see_modules();
        self.engine.module_types(&self.memory, module)
    }

    /// A loaded module, whose name a field of a request has before something else.
    ///
    /// # Errors
    /// `NOT_FOUND` if it isn't loaded.
    pub(super) fn module(&self, field: &'static str, name: &str) -> Result<Module, Status> {
        self.see_modules();
        self.engine.module(&self.memory, name).ok_or_else(|| {
            let why = format!("module {name:?} isn't loaded in the guest: load it first");
            status::with_field(Code::NotFound, field, why)
        })
    }

    /// The names of a loaded module's functions that a pattern matches and that can be probed; `None` if it isn't
    /// loaded.
    pub(super) fn functions_in_module(
        &self,
        module: &str,
        pattern: &str,
        kind: ProbeKind,
    ) -> Option<Vec<String>> {
        self.see_modules();
        self.engine
            .functions_in_module(&self.memory, module, pattern, kind)
    }

    /// The function of a loaded module that an address is in.
    pub(super) fn in_module(&self, address: GuestVirtAddr) -> Option<ModuleSymbol> {
        let find = || self.engine.resolve_in_module(&self.memory, address);
        find().or_else(|| self.see_modules().then(find)?)
    }

    /// Has the guest stand still once where its modules can't be read while it runs: it has not yet done so since its
    /// kernel has set up the page tables that map them. Returns true if it has.
    fn see_modules(&self) -> bool {
        if self.engine.can_read_modules(&self.memory) {
            return false;
        }
        self.stopped(|stopped| self.engine.learn_page_tables(stopped));
        true
    }
}

/// A function of a module among symbols. The letter is nm's for a local one: none can be linked with.
pub(super) fn symbol(function: &ModuleFunction) -> v1::Symbol {
    v1::Symbol {
        name: function.name.clone(),
        address: function.address.0,
        kind: "t".to_owned(),
    }
}
