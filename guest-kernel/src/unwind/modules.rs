//! The ORC tables of modules, read from the guest.

use guest_state::x86_64::paging::{PageTables, VirtFault};
use guest_state::{GuestMemory, GuestVirtAddr};
use thiserror::Error;

use super::error::OrcError;
use super::format::{ENTRY_LEN, Format};
use super::orc::{IP_LEN, Orc, RawOrc};
use crate::btf::{Btf, TypeError};
use crate::kernel_memory::KernelMemory;
use crate::modules::Module;

/// More entries than any module has. The largest drivers have 300,000.
const MAX_ENTRIES: u32 = 1 << 20;

/// Why the table of a module can't be used.
#[derive(Debug, Error)]
pub enum ModuleOrcError {
    /// It can't be read.
    #[error("the tables of the guest's module {name} can't be read; it may have been unloaded")]
    Memory {
        /// The module's name.
        name: String,
        /// What is wrong.
        source: VirtFault,
    },
    /// It has more entries than any module's.
    #[error(
        "the guest's module {name} has a table of {count} entries of how to unwind stacks; its memory is \
         damaged"
    )]
    TooLong {
        /// The module's name.
        name: String,
        /// How many entries.
        count: u32,
    },
    /// It makes no sense.
    #[error("the guest's module {name} doesn't tell how to unwind stacks")]
    Table {
        /// The module's name.
        name: String,
        /// What is wrong.
        source: OrcError,
    },
}

/// Where `struct module` has its tables, in bytes (`struct mod_arch_specific` in
/// `arch/x86/include/asm/module.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModuleOrcs {
    ips: u64,
    entries: u64,
    count: u64,
}

impl ModuleOrcs {
    /// # Errors
    /// Modules of this kernel have no such tables.
    pub(super) fn new(btf: &Btf) -> Result<Self, TypeError> {
        let offset = |path| Ok::<_, TypeError>(btf.member("module", path)?.offset);
        Ok(Self {
            ips: offset("arch.orc_unwind_ip")?,
            entries: offset("arch.orc_unwind")?,
            count: offset("arch.num_orcs")?,
        })
    }

    /// Reads the table of a module; `None` where it has none.
    ///
    /// # Errors
    /// See [`ModuleOrcError`].
    pub(super) fn read(
        self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: &Module,
        format: Format,
    ) -> Result<Option<Orc>, ModuleOrcError> {
        let guest = KernelMemory { memory, tables };
        let name = || module.name.clone();
        let fault = |source| ModuleOrcError::Memory {
            name: name(),
            source,
        };
        let at = |offset| module.address.wrapping_add(offset);
        let count = guest.u32(at(self.count)).map_err(fault)?;
        let [ips, entries] = [self.ips, self.entries].map(|offset| guest.address(at(offset)));
        let (address, entries) = (ips.map_err(fault)?, entries.map_err(fault)?);
        if count == 0 || [address, entries].contains(&GuestVirtAddr(0)) {
            return Ok(None);
        }
        if count > MAX_ENTRIES {
            let name = name();
            return Err(ModuleOrcError::TooLong { name, count });
        }
        let count = count as usize;
        let raw = RawOrc {
            address,
            ips: &guest.bytes(address, count * IP_LEN).map_err(fault)?,
            entries: &guest.bytes(entries, count * ENTRY_LEN).map_err(fault)?,
        };
        let code = vec![module.text.clone(), module.init_text.clone()];
        let table = Orc::new(raw, format, code);
        table.map(Some).map_err(|source| ModuleOrcError::Table {
            name: name(),
            source,
        })
    }
}
