//! The guest's loaded modules: their text, functions, and what can't be probed in them.
//!
//! Modules are found in the guest's own structures, whose layout BTF describes. The guest is not trusted:
//! counts and lengths are bounded, and the walk of a circular list ends.
//!
//! When to look, for both Linux 6.1 and 6.12 (`kernel/module/main.c`), as function entries with
//! their arguments in registers:
//!
//! - `do_init_module(mod)`: the module's text is complete, and none of its code has run.
//! - `ftrace_free_mem(mod, start, end)`: the module's init function has returned; its init text,
//!   `start` to `end`, is about to be freed. (With `mod` null it is the kernel's own.)
//! - `free_module(mod)`: its text is about to be freed, after its exit function has run, or its
//!   init function has failed.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::paging::VirtFault;
use thiserror::Error;

use crate::blacklist::{Blacklist, BlacklistError, ExceptionTable, Landings};
use crate::btf::{BtfError, TypeError};
use crate::symbols::LookupError;

mod functions;
mod layout;
mod read;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    reason = "only tests use it, on memory that is there"
)]
pub mod synthetic;
mod tables;
#[cfg(test)]
mod tests;
mod types;

pub use functions::{ModuleFunction, ModuleFunctions};
pub use layout::ModuleReader;

/// Why the modules of a kernel can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModulesUnsupported {
    /// No list of them.
    #[error("the guest kernel's list of modules is not found; it was built without modules")]
    NoList(#[source] LookupError),
    /// The types differ from all known kernels'.
    #[error("the guest kernel describes its modules in a way that vmprobe doesn't know")]
    Types(#[from] TypeError),
}

/// Why a module can't be read.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// It, or what it points at, isn't there.
    #[error("the guest's module at {module} can't be read; it may have been unloaded")]
    Memory {
        /// Its `struct module`; the list's head, if the list can't be read.
        module: GuestVirtAddr,
        /// What is wrong.
        source: VirtFault,
    },
    /// It isn't loaded yet or any more.
    #[error("the guest's module {name} is being loaded or unloaded; try again")]
    Unformed {
        /// Its name.
        name: String,
    },
    /// Something that a module can't have.
    #[error("the guest's module at {module} makes no sense ({what}); its memory is damaged")]
    Damaged {
        /// Its `struct module`.
        module: GuestVirtAddr,
        /// What is wrong.
        what: &'static str,
    },
    /// Its types are damaged.
    #[error("the types of the guest's module at {module} make no sense")]
    Types {
        /// Its `struct module`.
        module: GuestVirtAddr,
        /// What is wrong.
        #[source]
        source: BtfError,
    },
    /// Its own tables are damaged.
    #[error("the tables of the guest's module {name} make no sense")]
    Tables {
        /// Its name.
        name: String,
        /// What is wrong.
        #[source]
        source: BlacklistError,
    },
}

/// What the guest is doing with a module (`enum module_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleState {
    /// Its text is complete, and its init function has not returned.
    Coming,
    /// It is in use.
    Live,
    /// It is being unloaded.
    Going,
}

/// A loaded module.
#[derive(Debug, Clone)]
pub struct Module {
    /// Its `struct module`.
    pub address: GuestVirtAddr,
    /// Its name, as lsmod shows it.
    pub name: String,
    /// What the guest is doing with it.
    pub state: ModuleState,
    /// Its text.
    pub text: Range<GuestVirtAddr>,
    /// The text that is freed when its init function has returned; empty from then on.
    pub init_text: Range<GuestVirtAddr>,
    /// Its functions.
    pub functions: ModuleFunctions,
    /// What can't be probed in it, without what the kernel patches only while it loads the module.
    pub blacklist: Blacklist,
    /// Its instructions with a fix-up.
    pub exceptions: ExceptionTable,
    /// Where execution continues according to its tables.
    pub landings: Landings,
    /// True for a live patch: the kernel relocates its text whenever it loads a module that is patched.
    pub is_live_patch: bool,
}

impl Module {
    /// Returns true if an address is in its text or init text.
    pub fn is_text(&self, address: GuestVirtAddr) -> bool {
        self.text.contains(&address) || self.init_text.contains(&address)
    }
}
