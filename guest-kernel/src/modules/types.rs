//! Reading a module's types: what the kernel keeps of the section `.BTF` of its file.

use std::sync::Arc;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr};

use super::layout::TypesAt;
use super::read::{MAX_MODULES, Reading};
use super::{ModuleError, ModuleReader};
use crate::btf::Btf;

/// More bytes than the types of any module take. Those of graphics drivers take about 1 MiB.
const MAX_TYPES: u32 = 16 << 20;

impl ModuleReader {
    /// Reads the types of a module, which refer to those of its kernel. `None` if it has none, or the kernel doesn't
    /// keep them. `module` is the address of its `struct module`.
    ///
    /// # Errors
    /// They can't be read, or make no sense.
    pub fn types(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: GuestVirtAddr,
        kernel: &Arc<Btf>,
    ) -> Result<Option<Btf>, ModuleError> {
        let reading = self.reading(memory, tables, module);
        let Some(section) = self.types.as_ref().map(|at| reading.types(at)) else {
            return Ok(None);
        };
        let Some(section) = section? else {
            return Ok(None);
        };
        let types = Btf::parse_module(&section, kernel);
        types
            .map(Some)
            .map_err(|source| ModuleError::Types { module, source })
    }
}

impl Reading<'_> {
    /// Reads the section of the module's types.
    fn types(&self, at: &TypesAt) -> Result<Option<Vec<u8>>, ModuleError> {
        let address = |at| self.guest.address(at).map_err(self.fault());
        let mut entry = address(at.list)?;
        for _ in 0..MAX_MODULES {
            if entry == at.list {
                return Ok(None);
            }
            let of_module = GuestVirtAddr(entry.0.wrapping_sub(at.entry));
            if address(of_module.wrapping_add(at.module))? == self.module {
                let types = address(of_module.wrapping_add(at.types))?;
                let data = address(types.wrapping_add(at.data))?;
                let size = self.guest.u32(types.wrapping_add(at.size));
                let size = size.map_err(self.fault())?;
                if size > MAX_TYPES {
                    return Err(self.damaged("its types are too long"));
                }
                let section = self.guest.bytes(data, size as usize);
                return section.map(Some).map_err(self.fault());
            }
            entry = address(entry)?;
        }
        Err(self.damaged("the list of modules' types has no end"))
    }
}
