//! The guest's modules as bodies of code.

use std::collections::HashMap;
use std::sync::Arc;

use guest_kernel::blacklist::Blacklist;
use guest_kernel::btf::Btf;
use guest_kernel::kprobes::GuestKprobes;
use guest_kernel::modules::{Module, ModuleError, ModuleReader, ModuleState};
use guest_kernel::symbols::is_part_of_function;
use guest_state::x86_64::paging;
use guest_state::x86_64::paging::{FaultCause, PageTables};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, StoppedGuest, Vcpu};

use crate::engine::Engine;
use crate::engine::placement::body::{Body, Function, ModuleName};
use crate::engine::sites::table::Table;
use crate::error::RegisterError;
use crate::probe::{Place, ProbeKind};

/// A module and the page tables that map it.
#[derive(Debug)]
pub(crate) struct Loaded {
    module: Module,
    tables: PageTables,
}

impl Loaded {
    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    pub(crate) fn body<'a>(
        &'a self,
        memory: &'a dyn GuestMemory,
        table: &'a Table,
        kprobes: &'a GuestKprobes,
    ) -> ModuleBody<'a> {
        ModuleBody {
            loaded: self,
            memory,
            table,
            kprobes,
        }
    }
}

/// The modules of a stopped guest, each read when it is asked for.
pub(crate) struct LoadedModules<'a> {
    reader: &'a Result<ModuleReader, String>,
    memory: &'a dyn GuestMemory,
    tables: Vec<PageTables>,
    /// The modules in the list with their names, where they are, and the tables that map them;
    /// `None` until asked for.
    list: Option<Vec<(String, GuestVirtAddr, PageTables)>>,
    read: HashMap<String, Loaded>,
}

impl Engine {
    /// The modules of a stopped guest.
    pub(crate) fn loaded_modules<'a>(&'a self, guest: &'a dyn StoppedGuest) -> LoadedModules<'a> {
        LoadedModules {
            reader: &self.kernel.modules,
            memory: guest.memory(),
            tables: self.kernel_tables(guest),
            list: None,
            read: HashMap::new(),
        }
    }

    /// Reads the module that is the first argument of the function which a vCPU enters. The error
    /// is why it can't be read.
    pub(crate) fn module_at(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Result<Loaded, String> {
        let reader = self.kernel.modules.as_ref()?;
        let at = GuestVirtAddr(vcpu.registers().rdi);
        let tables = vcpu.page_tables().ok_or("its page tables can't be read")?;
        let module = reader.read(memory, tables, at);
        let module = module.map_err(|error| error.to_string())?;
        Ok(Loaded { module, tables })
    }

    /// Finds the module of a name in a guest that runs: where it is and its outline; `None` if it isn't loaded.
    ///
    /// # Errors
    /// The modules can't be searched.
    pub(crate) fn find_running(
        &self,
        memory: &dyn GuestMemory,
        name: &str,
    ) -> Result<Option<(GuestVirtAddr, Module)>, String> {
        let reader = self.kernel.modules.as_ref()?;
        let tables = self.running_tables()?;
        let list = reader.loaded(memory, tables);
        let list = list.map_err(|error| error.to_string())?;
        let mut found = list.into_iter().filter_map(|at| {
            let module = reader.outline(memory, tables, at).ok()?;
            (module.name == name).then_some((at, module))
        });
        Ok(found.next())
    }

    /// Reads a module of a guest that runs. What is read is right if the module is still loaded
    /// afterwards.
    ///
    /// # Errors
    /// The module can't be read.
    pub(crate) fn read_running(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
    ) -> Result<Loaded, String> {
        let reader = self.kernel.modules.as_ref()?;
        let tables = self.running_tables()?;
        let module = reader.read(memory, tables, at);
        let module = module.map_err(|error| error.to_string())?;
        Ok(Loaded { module, tables })
    }

    /// Returns the types of a module of a guest that runs, with those of its kernel. `None` if it isn't loaded for as
    /// long as that takes, or has no types that can be read.
    pub fn module_types(&self, memory: &dyn GuestMemory, name: &str) -> Option<Arc<Btf>> {
        let kernel = self.kernel.types.as_ref()?;
        let reader = self.kernel.modules.as_ref().ok()?;
        let find = || Some(self.find_running(memory, name).ok()??.0);
        let at = find()?;
        let types = reader.types(memory, self.running_tables().ok()?, at, kernel);
        let types = types.ok()??;
        (find() == Some(at)).then(|| Arc::new(types))
    }

    /// Reads a module of a guest that runs; `None` if it isn't loaded, or can't be read.
    pub fn module(&self, memory: &dyn GuestMemory, name: &str) -> Option<Module> {
        Some(self.load_running(memory, name)?.module)
    }

    fn load_running(&self, memory: &dyn GuestMemory, name: &str) -> Option<Loaded> {
        let (at, _) = self.find_running(memory, name).ok()??;
        let loaded = self.read_running(memory, at).ok()?;
        // Another module may have taken its place.
        (loaded.module.name == name).then_some(loaded)
    }

    /// Returns the names of those functions of a module of a guest that runs that a pattern matches and that take a
    /// probe, in the order of their addresses. Parts of functions are left out, and those that others share their name
    /// with. `None` if the module isn't loaded, or can't be read.
    pub fn functions_in_module(
        &self,
        memory: &dyn GuestMemory,
        module: &str,
        pattern: &str,
        kind: ProbeKind,
    ) -> Option<Vec<String>> {
        let loaded = self.load_running(memory, module)?;
        let table = self.table();
        // The guest may be changing its kprobes: the registration looks at them again.
        let kprobes = GuestKprobes::default();
        let body = loaded.body(memory, &table, &kprobes);
        let takes_probe = |name: &str| {
            let place = Place::Symbol {
                module: Some(module.to_owned()),
                name: name.to_owned(),
                offset: 0,
            };
            self.locate(memory, &body, &place, kind).is_ok()
        };
        let functions = &loaded.module.functions;
        let names = functions.matching(pattern).map(|it| &it.name);
        let is_meant = |name: &str| {
            !is_part_of_function(name) && functions.is_unique(name) && takes_probe(name)
        };
        Some(names.filter(|name| is_meant(name)).cloned().collect())
    }

    fn running_tables(&self) -> Result<PageTables, String> {
        let tables = self.last_tables.get();
        tables.ok_or_else(|| "the kernel's page tables aren't known yet".to_owned())
    }

    /// As [`Self::module_at`], but reads the module's name only.
    pub(crate) fn module_name(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<String> {
        let reader = self.kernel.modules.as_ref().ok()?;
        let at = GuestVirtAddr(vcpu.registers().rdi);
        reader.name(memory, vcpu.page_tables()?, at).ok()
    }
}

impl LoadedModules<'_> {
    /// Returns the module of a name; `None` when it isn't loaded.
    ///
    /// # Errors
    /// Modules can't be found in this kernel, or this one can't be read.
    pub(crate) fn find(&mut self, name: &str) -> Result<Option<&Loaded>, RegisterError> {
        let found = self.list()?.iter().find(|(other, ..)| other == name);
        match found.map(|&(_, at, tables)| (at, tables)) {
            Some((at, tables)) => self.read(name, at, tables),
            None => Ok(None),
        }
    }

    /// Returns the module in whose text an address is.
    ///
    /// # Errors
    /// A module can't be read.
    pub(crate) fn around(&mut self, at: GuestVirtAddr) -> Result<Option<&Loaded>, RegisterError> {
        if self.reader.is_err() {
            return Ok(None);
        }
        for (name, module, tables) in self.list()?.clone() {
            let loaded = self.read(&name, module, tables)?;
            if loaded.is_some_and(|loaded| loaded.module.is_text(at)) {
                return self.read(&name, module, tables);
            }
        }
        Ok(None)
    }

    fn list(&mut self) -> Result<&Vec<(String, GuestVirtAddr, PageTables)>, RegisterError> {
        let reader = reader(self.reader)?;
        // Before the kernel has set its page tables up, no module is loaded.
        let found = || {
            self.tables.iter().find_map(|&tables| {
                let list = reader.loaded(self.memory, tables).ok()?;
                let named = list.into_iter().filter_map(|at| {
                    let name = reader.name(self.memory, tables, at).ok()?;
                    Some((name, at, tables))
                });
                Some(named.collect())
            })
        };
        if self.list.is_none() {
            self.list = Some(found().unwrap_or_default());
        }
        Ok(self.list.get_or_insert_default())
    }

    /// Reads a module of the list, once. `None` when it is no more than a name yet, or is being
    /// unloaded.
    fn read(
        &mut self,
        name: &str,
        at: GuestVirtAddr,
        tables: PageTables,
    ) -> Result<Option<&Loaded>, RegisterError> {
        if !self.read.contains_key(name) {
            let module = match reader(self.reader)?.read(self.memory, tables, at) {
                // A probe that is placed now might outlive the module.
                Ok(module) if module.state == ModuleState::Going => return Ok(None),
                Ok(module) => module,
                Err(ModuleError::Unformed { .. }) => return Ok(None),
                Err(error) => return Err(unreadable(name, &error)),
            };
            self.read.insert(name.to_owned(), Loaded { module, tables });
        }
        Ok(self.read.get(name))
    }
}

fn reader(reader: &Result<ModuleReader, String>) -> Result<&ModuleReader, RegisterError> {
    reader
        .as_ref()
        .map_err(|why| RegisterError::NoModules { why: why.clone() })
}

fn unreadable(module: &str, error: &ModuleError) -> RegisterError {
    RegisterError::Module {
        module: module.to_owned(),
        why: error.to_string(),
    }
}

/// A loaded module's code.
pub(crate) struct ModuleBody<'a> {
    loaded: &'a Loaded,
    memory: &'a dyn GuestMemory,
    table: &'a Table,
    kprobes: &'a GuestKprobes,
}

impl ModuleBody<'_> {
    fn named(&self, place: &Place, name: &str, offset: u64) -> Result<Function, RegisterError> {
        let module = &self.loaded.module;
        let mut functions = module.functions.named(name);
        let unknown = || RegisterError::NotInModule {
            module: module.name.clone(),
            symbol: name.to_owned(),
        };
        let function = functions.next().ok_or_else(unknown)?;
        let others: Vec<_> = functions.map(|function| function.address).collect();
        if !others.is_empty() {
            return Err(RegisterError::AmbiguousInModule {
                place: place.to_string(),
                addresses: std::iter::once(function.address).chain(others).collect(),
            });
        }
        if offset >= function.size {
            return Err(RegisterError::OutsideSymbol {
                place: place.to_string(),
                symbol: name.to_owned(),
                size: function.size,
            });
        }
        Ok(Function {
            name: function.name.clone(),
            start: function.address,
            size: function.size,
            offset,
        })
    }
}

impl Body for ModuleBody<'_> {
    fn module(&self) -> Option<ModuleName> {
        Some(self.loaded.module.name.as_str().into())
    }

    fn function(&self, place: &Place) -> Result<Function, RegisterError> {
        match place {
            Place::Symbol { name, offset, .. } => self.named(place, name, *offset),
            Place::Address(address) => {
                let found = self.loaded.module.functions.resolve(*address);
                let (function, offset) = found.ok_or_else(|| RegisterError::NotText {
                    place: place.to_string(),
                    address: *address,
                })?;
                Ok(Function {
                    name: function.name.clone(),
                    start: function.address,
                    size: function.size,
                    offset,
                })
            }
        }
    }

    fn text(&self, at: GuestVirtAddr, len: usize) -> Option<Result<Vec<u8>, MemoryError>> {
        let module = &self.loaded.module;
        let bodies = [&module.text, &module.init_text];
        let body = bodies.into_iter().find(|body| body.contains(&at))?;
        let left = usize::try_from(body.end.offset_from(at)?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len.min(left)];
        let read = paging::read_virt(self.memory, self.loaded.tables, at, &mut bytes);
        match read.map_err(|fault| fault.cause) {
            Ok(()) => {
                self.kprobes.unmask(at, &mut bytes);
                self.table.unmask(at, &mut bytes);
                Some(Ok(bytes))
            }
            Err(FaultCause::Memory(error)) => Some(Err(error)),
            Err(FaultCause::Walk(_) | FaultCause::ReadOnly { .. }) => None,
        }
    }

    fn phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        let page = paging::walk(self.memory, self.loaded.tables, at).ok()?;
        Some(page.phys)
    }

    fn kprobes(&self) -> &GuestKprobes {
        self.kprobes
    }

    fn blacklist(&self) -> &Blacklist {
        &self.loaded.module.blacklist
    }

    fn has_ftrace_table(&self) -> bool {
        true
    }

    fn is_started(&self) -> bool {
        true
    }

    fn expects_fault(&self, at: GuestVirtAddr) -> bool {
        self.loaded.module.exceptions.contains(at)
    }

    // The module's file isn't known, and the text that is read may have breakpoints.
    fn is_own_int3(&self, _at: GuestVirtAddr) -> bool {
        false
    }
}
