//! What the server reads of the guest's modules while the guest runs.

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
    /// Returns the types of a loaded module, with those of its kernel.
    pub(super) fn module_types(&self, module: &str) -> Option<Arc<Btf>> {
        self.see_modules();
        self.engine.module_types(&self.memory, module)
    }

    /// Returns a loaded module, whose name is the prefix in a field of a request.
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

    /// Returns the names of a loaded module's functions that match a pattern and can be probed, or `None` if the module
    /// isn't loaded.
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

    /// Returns the function of a loaded module that an address is in.
    pub(super) fn in_module(&self, address: GuestVirtAddr) -> Option<ModuleSymbol> {
        let find = || self.engine.resolve_in_module(&self.memory, address);
        find().or_else(|| self.see_modules().then(find)?)
    }

    /// Stops the guest once if its modules can't be read while it runs: the guest hasn't been stopped since its kernel
    /// has set up the page tables that map the modules. Returns true if it did so.
    fn see_modules(&self) -> bool {
        if self.engine.can_read_modules(&self.memory) {
            return false;
        }
        self.stopped(|stopped| self.engine.learn_page_tables(stopped));
        true
    }
}

/// Returns a function of a module as a symbol. The letter is nm's for a local symbol: none can be linked with.
pub(super) fn symbol(function: &ModuleFunction) -> v1::Symbol {
    v1::Symbol {
        name: function.name.clone(),
        address: function.address.0,
        kind: "t".to_owned(),
    }
}
