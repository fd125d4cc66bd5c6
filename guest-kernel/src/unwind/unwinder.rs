//! What is known of a kernel's stacks: the tables of its image and of its modules.

use std::ops::Range;
use std::sync::Arc;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr};

use crate::btf::Btf;
use crate::image::Image;
use crate::modules::Module;
use crate::symbols::Symbols;

use super::entry::OrcEntry;
use super::error::OrcError;
use super::ftrace::FtraceTrampolines;
use super::modules::{ModuleOrcError, ModuleOrcs};
use super::orc::Orc;
use super::replaced::Replaced;

/// Where modules are, and code that the kernel makes while it runs
/// (`Documentation/arch/x86/x86_64/mm.rst`).
const MODULE_SPACE: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

/// Unwinds the stacks of one kernel. A copy shares the tables.
#[derive(Debug, Clone)]
pub struct Unwinder {
    /// `None` where the kernel has frame pointers instead.
    pub(super) image: Option<Arc<Orc>>,
    /// The code of the image.
    pub(super) text: [Range<GuestVirtAddr>; 2],
    pub(super) layout: Option<ModuleOrcs>,
    pub(super) modules: Vec<LoadedModule>,
    pub(super) replaced: Replaced,
    pub(super) ftrace: Option<FtraceTrampolines>,
}

#[derive(Debug, Clone)]
pub(super) struct LoadedModule {
    /// Its `struct module`.
    address: GuestVirtAddr,
    text: [Range<GuestVirtAddr>; 2],
    table: Option<Arc<Orc>>,
}

impl Unwinder {
    /// Reads how to unwind the stacks of a kernel from its vmlinux. A kernel without tables is taken to have
    /// frame pointers.
    ///
    /// # Errors
    /// See [`OrcError`].
    pub fn from_image(
        image: &Image<'_>,
        symbols: &Symbols,
        btf: Option<&Btf>,
    ) -> Result<Self, OrcError> {
        Ok(Self {
            image: Orc::from_image(image, symbols, btf)?.map(Arc::new),
            layout: btf.and_then(|btf| ModuleOrcs::new(btf).ok()),
            replaced: Replaced::find(symbols, btf),
            ftrace: FtraceTrampolines::find(symbols, btf),
            ..Self::by_frame_pointers(symbols)
        })
    }

    /// Makes an unwinder by frame pointers, for a kernel of which only the symbols are known.
    pub fn by_frame_pointers(symbols: &Symbols) -> Self {
        Self {
            image: None,
            text: [symbols.text(), symbols.init_text()],
            layout: None,
            modules: Vec::new(),
            replaced: Replaced::default(),
            ftrace: None,
        }
    }

    /// The table of the image; `None` where the kernel has none.
    pub fn table(&self) -> Option<&Orc> {
        self.image.as_deref()
    }

    /// Takes in a module, once it is loaded as far as [`Module`] describes, or anew when it has lost its init
    /// text. Without that, its functions are taken to have frame pointers.
    ///
    /// # Errors
    /// Its table can't be used; see [`ModuleOrcError`]. Its code is known all the same.
    pub fn add_module(
        &mut self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        module: &Module,
    ) -> Result<(), ModuleOrcError> {
        self.remove_module(module.address);
        let table = match (&self.image, self.layout) {
            (Some(image), Some(layout)) => layout.read(memory, tables, module, image.format),
            _ => Ok(None),
        };
        let (table, result) = match table {
            Ok(table) => (table, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.modules.push(LoadedModule {
            address: module.address,
            text: [module.text.clone(), module.init_text.clone()],
            table: table.map(Arc::new),
        });
        result
    }

    /// Forgets a module by the address of its `struct module`.
    pub fn remove_module(&mut self, module: GuestVirtAddr) {
        self.modules.retain(|loaded| loaded.address != module);
    }

    /// Returns what the tables say of the instruction at an address; `None` for code without tables.
    pub fn find(&self, at: GuestVirtAddr) -> Option<OrcEntry> {
        let image = self.image.as_ref()?;
        if image.covers(at) {
            return image.find(at);
        }
        self.module(at)?.table.as_ref()?.find(at)
    }

    /// Returns true if an address can be in code: of the image, of a module, or where the kernel makes code while it
    /// runs.
    pub fn is_text(&self, at: GuestVirtAddr) -> bool {
        self.text.iter().any(|text| text.contains(&at))
            || MODULE_SPACE.contains(&at.0)
            || self.module(at).is_some()
    }

    /// Returns true if an address may be in a module that wasn't passed to [`Self::add_module`]: its callers would be
    /// guessed. Always false for a kernel without tables.
    pub fn lacks(&self, at: GuestVirtAddr) -> bool {
        self.image.is_some()
            && self.layout.is_some()
            && MODULE_SPACE.contains(&at.0)
            && !self.text.iter().any(|text| text.contains(&at))
            && self.module(at).is_none()
    }

    /// How many entries the tables of the modules have.
    pub fn module_entries(&self) -> usize {
        let tables = self.modules.iter().filter_map(|it| it.table.as_ref());
        tables.map(|table| table.len()).sum()
    }

    fn module(&self, at: GuestVirtAddr) -> Option<&LoadedModule> {
        let is_in = |loaded: &&LoadedModule| loaded.text.iter().any(|text| text.contains(&at));
        self.modules.iter().find(is_in)
    }

    pub(super) fn has_orc(&self) -> bool {
        self.image.is_some()
    }
}
