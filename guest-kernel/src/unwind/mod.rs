//! Who called whom: the kernel's stacks, unwound from outside.
//!
//! Distributions build their kernels without frame pointers, but with ORC tables, which say for each place of
//! the code where on the stack the caller is. The kernel prints its own traces by them. Sources:
//! `Documentation/arch/x86/orc-unwinder.rst`, `arch/x86/kernel/unwind_orc.c`.
//!
//! [`Unwinder`] does it by the tables of a kernel's image and of its loaded modules, or by frame pointers in a
//! kernel that has none. It reads a stack by a function of the caller's, so that it can be the guest's memory,
//! or what was copied of it ([`CapturedStack`]). Neither tables nor stacks are trusted: a trace always ends.
//!
//! What the kernel knows and is not looked for here: which addresses are the stacks of this CPU or task, and
//! where ftrace has copies of its own code (`ftrace_ops_trampoline`). For the latter, as for compiled BPF
//! programs, a frame pointer is assumed, as the kernel does for BPF.

use std::ops::Range;
use std::sync::Arc;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Registers};

use crate::btf::Btf;
use crate::image::Image;
use crate::modules::Module;
use crate::symbols::Symbols;

mod entry;
mod format;
mod frame_pointer;
mod modules;
mod orc;
mod pt_regs;
mod replaced;
#[cfg(test)]
mod tests;
mod trace;
mod walk;

pub use entry::{Base, Frame, OrcEntry, Register};
pub use modules::ModuleOrcError;
use modules::ModuleOrcs;
pub use orc::{Orc, OrcError};
use replaced::Replaced;
pub use trace::{CapturedStack, Foreign, MAX_FRAMES, StackTrace, Surroundings, TraceEnd};
use walk::Walk;

/// Where modules are, and code that the kernel makes while it runs
/// (`Documentation/arch/x86/x86_64/mm.rst`).
const MODULE_SPACE: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

/// Unwinds the stacks of one kernel. A copy shares the tables.
#[derive(Debug, Clone)]
pub struct Unwinder {
    /// `None` where the kernel has frame pointers instead.
    image: Option<Arc<Orc>>,
    /// The code of the image.
    text: [Range<GuestVirtAddr>; 2],
    layout: Option<ModuleOrcs>,
    modules: Vec<LoadedModule>,
    replaced: Replaced,
}

#[derive(Debug, Clone)]
struct LoadedModule {
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
            ..Self::by_frame_pointers(symbols)
        })
    }

    /// For a kernel of which only the symbols are known: by frame pointers.
    pub fn by_frame_pointers(symbols: &Symbols) -> Self {
        Self {
            image: None,
            text: [symbols.text(), symbols.init_text()],
            layout: None,
            modules: Vec::new(),
            replaced: Replaced::default(),
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

    /// What the tables say of the instruction at an address; `None` for code without tables.
    pub fn find(&self, at: GuestVirtAddr) -> Option<OrcEntry> {
        let image = self.image.as_ref()?;
        if image.covers(at) {
            return image.find(at);
        }
        self.module(at)?.table.as_ref()?.find(at)
    }

    /// Returns true if an address can be one of code: of the image, of a module, or where the kernel makes
    /// code while it runs.
    pub fn is_text(&self, at: GuestVirtAddr) -> bool {
        self.text.iter().any(|text| text.contains(&at))
            || MODULE_SPACE.contains(&at.0)
            || self.module(at).is_some()
    }

    fn module(&self, at: GuestVirtAddr) -> Option<&LoadedModule> {
        let is_in = |loaded: &&LoadedModule| loaded.text.iter().any(|text| text.contains(&at));
        self.modules.iter().find(is_in)
    }

    fn has_orc(&self) -> bool {
        self.image.is_some()
    }

    /// The callers of code in the kernel whose registers these are, innermost first, at most `frames`
    /// addresses with the code's own and never more than [`MAX_FRAMES`].
    ///
    /// Always ends: a stack is walked upwards, and only a few times from one stack to another.
    pub fn unwind(&self, start: &Registers, around: Surroundings<'_>, frames: usize) -> StackTrace {
        Walk::new(self, start, around).trace(frames)
    }
}
