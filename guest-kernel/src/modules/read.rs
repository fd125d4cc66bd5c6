//! Reading a module: its text and functions.

use std::ops::Range;

use guest_state::x86_64::paging::{PageTables, VirtFault};
use guest_state::{GuestMemory, GuestVirtAddr};

use super::layout::TextAt;
use super::{Module, ModuleError, ModuleFunction, ModuleFunctions, ModuleReader, ModuleState};
use crate::kernel_memory::KernelMemory;

/// More modules than any guest loads. A longer list is taken to be circular.
pub(super) const MAX_MODULES: usize = 1 << 14;
/// More text than any module has, in bytes. Graphics drivers have about 8 MiB.
pub(super) const MAX_TEXT: u64 = 64 << 20;
/// More symbols than any module has.
const MAX_SYMBOLS: u32 = 1 << 18;
/// The longest name of a symbol with its NUL (`KSYM_NAME_LEN`).
const MAX_NAME: usize = 512;
/// More bytes than the names of any module's functions add up to.
const MAX_NAMES: usize = 16 << 20;

/// `Elf64_Sym` (System V ABI, "Symbol Table"): name, type and binding, other, section, value, size.
const SYMBOL_LEN: usize = 24;
/// `STT_FUNC`
const FUNCTION: u8 = 2;

/// One module while it is read.
pub(super) struct Reading<'a> {
    pub(super) reader: &'a ModuleReader,
    pub(super) guest: KernelMemory<'a>,
    pub(super) module: GuestVirtAddr,
}

impl ModuleReader {
    /// Returns the addresses of the `struct module`s of all modules in the guest's list, the one loaded last first.
    /// Some may be half loaded or unloaded.
    ///
    /// # Errors
    /// The list can't be read, or has no end.
    pub fn loaded(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
    ) -> Result<Vec<GuestVirtAddr>, ModuleError> {
        let guest = KernelMemory { memory, tables };
        let at_list = |source| ModuleError::Memory {
            module: self.list,
            source,
        };
        let mut modules = Vec::new();
        let mut entry = guest.address(self.list).map_err(at_list)?;
        while entry != self.list {
            if modules.len() == MAX_MODULES {
                return Err(ModuleError::Damaged {
                    module: self.list,
                    what: "the list of modules has no end",
                });
            }
            modules.push(GuestVirtAddr(entry.0.wrapping_sub(self.layout.list)));
            entry = guest.address(entry).map_err(at_list)?;
        }
        Ok(modules)
    }

    /// Reads the name of a module in any state. It is enough to decide whether the module is wanted.
    ///
    /// # Errors
    /// It isn't there, or has no name.
    pub fn name(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: GuestVirtAddr,
    ) -> Result<String, ModuleError> {
        self.reading(memory, tables, module).name()
    }

    /// Reads a module. `module` is the address of its `struct module`.
    ///
    /// # Errors
    /// See [`ModuleError`].
    pub fn read(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: GuestVirtAddr,
    ) -> Result<Module, ModuleError> {
        self.reading(memory, tables, module).module()
    }

    /// Reads only where a module's text is, its name and its state: it has no functions and no tables then.
    ///
    /// # Errors
    /// See [`ModuleError`].
    pub fn outline(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: GuestVirtAddr,
    ) -> Result<Module, ModuleError> {
        self.reading(memory, tables, module).outline()
    }

    /// As [`Self::outline`], with the module's functions.
    ///
    /// # Errors
    /// See [`ModuleError`].
    pub fn with_functions(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: GuestVirtAddr,
    ) -> Result<Module, ModuleError> {
        self.reading(memory, tables, module).with_functions()
    }

    pub(super) fn reading<'a>(
        &'a self,
        memory: &'a dyn GuestMemory,
        tables: PageTables,
        module: GuestVirtAddr,
    ) -> Reading<'a> {
        Reading {
            reader: self,
            guest: KernelMemory { memory, tables },
            module,
        }
    }
}

impl Reading<'_> {
    pub(super) fn damaged(&self, what: &'static str) -> ModuleError {
        ModuleError::Damaged {
            module: self.module,
            what,
        }
    }

    pub(super) fn fault(&self) -> impl Fn(VirtFault) -> ModuleError + use<> {
        let module = self.module;
        move |source| ModuleError::Memory { module, source }
    }

    /// Returns the address of a member.
    pub(super) fn at(&self, offset: u64) -> GuestVirtAddr {
        self.module.wrapping_add(offset)
    }

    fn name(&self) -> Result<String, ModuleError> {
        let layout = &self.reader.layout;
        let name = self.guest.name(self.at(layout.name), layout.name_len);
        name.map_err(self.fault())?
            .ok_or_else(|| self.damaged("it has no name"))
    }

    fn outline(&self) -> Result<Module, ModuleError> {
        let layout = &self.reader.layout;
        let name = self.name()?;
        let state = self.guest.u32(self.at(layout.state));
        let state = match state.map_err(self.fault())? {
            state if state == layout.states.live => ModuleState::Live,
            state if state == layout.states.coming => ModuleState::Coming,
            state if state == layout.states.going => ModuleState::Going,
            _ => return Err(ModuleError::Unformed { name }),
        };
        let text = self.text(layout.text)?;
        let init_text = self.text(layout.init_text)?;
        Ok(Module {
            address: self.module,
            name,
            state,
            text,
            init_text,
            functions: ModuleFunctions::default(),
            blacklist: Default::default(),
            exceptions: Default::default(),
            landings: Default::default(),
            is_live_patch: false,
        })
    }

    fn with_functions(&self) -> Result<Module, ModuleError> {
        let mut module = self.outline()?;
        let table = || self.guest.address(self.at(self.reader.layout.symbols.at));
        let before = table().map_err(self.fault())?;
        module.functions = self.functions(&[module.text.clone(), module.init_text.clone()])?;
        // When a module has started its symbols are moved, and the old ones are freed a while later
        // (`do_init_module` in `kernel/module/main.c`).
        if table().map_err(self.fault())? != before {
            return Err(ModuleError::Unformed { name: module.name });
        }
        Ok(module)
    }

    fn module(&self) -> Result<Module, ModuleError> {
        let mut module = self.with_functions()?;
        self.tables(&mut module)?;
        Ok(module)
    }

    /// Reads a range of text; empty where it has no size.
    pub(super) fn text(&self, at: TextAt) -> Result<Range<GuestVirtAddr>, ModuleError> {
        let base = self.guest.address(self.at(at.base)).map_err(self.fault())?;
        let size = self.guest.u32(self.at(at.size)).map_err(self.fault())?;
        let size = u64::from(size);
        if size > MAX_TEXT {
            return Err(self.damaged("its text is too long"));
        }
        let end = base.checked_add(size);
        Ok(base..end.ok_or_else(|| self.damaged("its text has no end"))?)
    }

    /// Reads the functions in some texts.
    fn functions(&self, texts: &[Range<GuestVirtAddr>]) -> Result<ModuleFunctions, ModuleError> {
        let layout = self.reader.layout.symbols;
        let address = |at| self.guest.address(at).map_err(self.fault());
        let table = address(self.at(layout.at))?;
        let symbols = address(table.wrapping_add(layout.symbols))?;
        let names = address(table.wrapping_add(layout.names))?;
        let count = self.guest.u32(table.wrapping_add(layout.count));
        let count = count.map_err(self.fault())?;
        if count > MAX_SYMBOLS {
            return Err(self.damaged("it has too many symbols"));
        }
        let bytes = self.guest.bytes(symbols, count as usize * SYMBOL_LEN);
        let bytes = bytes.map_err(self.fault())?;
        let mut functions = Vec::new();
        let mut names_len = 0_usize;
        let (entries, _) = bytes.as_chunks::<SYMBOL_LEN>();
        for entry in entries {
            let (words, _) = entry.as_chunks::<8>();
            let [first, address, size] = words else {
                continue;
            };
            let [n0, n1, n2, n3, info, ..] = *first;
            let name = u32::from_le_bytes([n0, n1, n2, n3]);
            let address = GuestVirtAddr(u64::from_le_bytes(*address));
            let size = u64::from_le_bytes(*size);
            let text = texts.iter().find(|text| text.contains(&address));
            let Some(text) = text.filter(|_| info & 0xf == FUNCTION) else {
                continue;
            };
            let name = self.guest.name(names.wrapping_add(name.into()), MAX_NAME);
            let Some(name) = name.map_err(self.fault())? else {
                continue;
            };
            names_len += name.len();
            if names_len > MAX_NAMES {
                return Err(self.damaged("its functions' names are too long"));
            }
            functions.push(ModuleFunction {
                name,
                address,
                // Not beyond the text; 0 until the next function is known.
                size: size.min(text.end.0 - address.0),
            });
        }
        functions.sort_by_key(|function| function.address);
        fill_sizes(&mut functions, texts);
        Ok(functions.into_iter().collect())
    }
}

/// Gives functions without a size all that there is up to the next one.
fn fill_sizes(functions: &mut [ModuleFunction], texts: &[Range<GuestVirtAddr>]) {
    let mut next: Option<GuestVirtAddr> = None;
    let mut here: Option<GuestVirtAddr> = None;
    for function in functions.iter_mut().rev() {
        let address = function.address;
        if here != Some(address) {
            next = here;
            here = Some(address);
        }
        if function.size == 0 {
            let text = texts.iter().find(|text| text.contains(&address));
            let end = text.map_or(address, |text| text.end);
            function.size = next.map_or(end, |next| next.min(end)).0 - address.0;
        }
    }
}
