//! What is known of the guest's modules while it runs: how to unwind through them, and what their functions are
//! called.
//!
//! A module's tables are read when a stack leads into the module, its functions when an address in it is looked up.
//! Both are kept until any module comes or goes: the engine learns of that by breakpoints, before the memory is used
//! for something else. So nothing is kept here of a module that has gone. The list of modules is kept as well: it tells
//! which addresses in the modules' space belong to no module, as those of compiled BPF programs.

use std::sync::Arc;

use guest_kernel::modules::{Module, ModuleFunction, ModuleFunctions, ModuleReader, ModuleState};
use guest_kernel::unwind::Unwinder;
use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr};

use crate::engine::lock::{Lock, Rank};

/// Entries of modules' tables that are kept at most before all are forgotten, some 12 MiB of memory; the last
/// one read comes on top.
const MOST_ENTRIES: usize = 1 << 21;

/// Functions of modules that are kept at most before all are forgotten; those of the last module come on top.
const MOST_FUNCTIONS: usize = 1 << 18;

/// A function of a module, and where in it an address is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSymbol {
    /// The module's name.
    pub module: String,
    /// The function.
    pub function: ModuleFunction,
    /// Bytes from its start to the address.
    pub offset: u64,
}

/// What is known of modules, as far as stacks and addresses have led into them.
#[derive(Debug)]
pub(crate) struct KnownModules(Lock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Where the modules are, with the functions of those that were looked up; `None` until it is first needed.
    list: Option<Vec<Module>>,
    /// The unwind tables of the kernel and of modules; `None` while no module's are known.
    unwinder: Option<Arc<Unwinder>>,
}

/// What it takes to read the modules of a guest.
#[derive(Clone, Copy)]
pub(crate) struct ModulesOf<'a> {
    pub(crate) reader: &'a ModuleReader,
    pub(crate) memory: &'a dyn GuestMemory,
    pub(crate) tables: PageTables,
}

impl KnownModules {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::KnownModules, Known::default()))
    }

    /// Forgets all that is known: a module comes or goes.
    pub(crate) fn forget(&self) {
        *self.0.lock() = Known::default();
    }

    /// Returns the function of a module that an address is in. `keeps` is true if the engine is told when a module
    /// goes, so that what is read can be kept.
    pub(crate) fn resolve(
        &self,
        modules: ModulesOf<'_>,
        at: GuestVirtAddr,
        keeps: bool,
    ) -> Option<ModuleSymbol> {
        match keeps {
            true => self.0.lock().resolve(modules, at),
            false => Known::default().resolve(modules, at),
        }
    }

    /// The unwind tables of the kernel and of those modules whose tables are known already.
    pub(crate) fn unwinder(&self) -> Option<Arc<Unwinder>> {
        self.0.lock().unwinder.clone()
    }

    /// Reads the tables of the modules that these addresses are in and that `unwinder` lacks, and returns an unwinder
    /// that has them as well. `None` if it lacks none. `kernel` has no module's tables.
    pub(crate) fn learn(
        &self,
        kernel: &Unwinder,
        unwinder: &Unwinder,
        modules: ModulesOf<'_>,
        addresses: &[GuestVirtAddr],
    ) -> Option<Arc<Unwinder>> {
        let mut known = self.0.lock();
        let list = match &mut known.list {
            Some(list) => list,
            none => none.insert(modules.list()?),
        };
        let mut next: Option<Unwinder> = None;
        for at in addresses {
            let now = next.as_ref().unwrap_or(unwinder);
            let around = list.iter().find(|module| module.is_text(*at));
            let Some(module) = around.filter(|_| now.lacks(*at)) else {
                continue;
            };
            let mut more = match now.module_entries() > MOST_ENTRIES {
                true => kernel.clone(),
                false => now.clone(),
            };
            // The functions of a module without a table are taken to have frame pointers.
            let _guessed = more.add_module(modules.memory, modules.tables, module);
            next = Some(more);
        }
        let next = Arc::new(next?);
        known.unwinder = Some(Arc::clone(&next));
        Some(next)
    }
}

impl Known {
    /// The function that an address is in.
    fn resolve(&mut self, modules: ModulesOf<'_>, at: GuestVirtAddr) -> Option<ModuleSymbol> {
        let list = match &mut self.list {
            Some(list) => list,
            none => none.insert(modules.list()?),
        };
        let number = list.iter().position(|module| module.is_text(at))?;
        let kept: usize = list.iter().map(|module| module.functions.len()).sum();
        let found = list.get(number)?;
        if found.functions.is_empty() {
            let functions = modules.functions(found)?;
            if kept > MOST_FUNCTIONS {
                list.iter_mut()
                    .for_each(|it| it.functions = Default::default());
            }
            list.get_mut(number)?.functions = functions;
        }
        let module = list.get(number)?;
        let texts = [&module.text, &module.init_text];
        let text = texts.into_iter().find(|text| text.contains(&at))?;
        let next = module.functions.partition_point(|it| it.address <= at);
        let (before, behind) = module.functions.split_at_checked(next)?;
        let function = before.last().filter(|it| text.contains(&it.address))?;
        // The padding behind a function belongs to it, as in the kernel (`find_kallsyms_symbol` in
        // `kernel/module/kallsyms.c`).
        let end = behind
            .first()
            .map_or(text.end, |next| next.address.min(text.end));
        Some(ModuleSymbol {
            module: module.name.clone(),
            offset: at.offset_from(function.address)?,
            function: ModuleFunction {
                size: end.offset_from(function.address)?,
                ..function.clone()
            },
        })
    }
}

impl ModulesOf<'_> {
    /// The functions of a module, if it is still there.
    fn functions(self, module: &Module) -> Option<ModuleFunctions> {
        let read = self
            .reader
            .with_functions(self.memory, self.tables, module.address);
        let read = read.ok()?.functions;
        let of_texts = read.iter().filter(|it| module.is_text(it.address));
        Some(of_texts.cloned().collect())
    }

    /// All modules with code that may run; `None` if the guest is just changing their list.
    fn list(self) -> Option<Vec<Module>> {
        let all = self.reader.loaded(self.memory, self.tables).ok()?;
        let outline = |at| {
            let mut module = self.reader.outline(self.memory, self.tables, at).ok()?;
            if module.state != ModuleState::Coming {
                // The init text is being freed, if it isn't already.
                module.init_text = module.init_text.start..module.init_text.start;
            }
            Some(module)
        };
        Some(all.into_iter().filter_map(outline).collect())
    }
}
