//! What an argument is compiled for.

use guest_kernel::Kernel;
use guest_kernel::btf::Btf;
use guest_kernel::percpu::Variables;
use guest_kernel::symbols::Symbols;

/// Where a probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function<'a> {
    /// The symbol that the probe is on; empty where none is known.
    pub name: &'a str,
    /// The module that has the symbol; empty for the kernel itself.
    pub module: &'a str,
    /// Where in the function.
    pub place: Place,
}

/// Where in a function a probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the function's entry, before it has changed a register that holds an argument, or the stack.
    Entry,
    /// Elsewhere in it.
    Inside,
    /// It is a return probe.
    Return,
}

/// What is known of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Its symbols.
    pub symbols: &'a Symbols,
    /// Its types, if it has them; for a function of a module those of the module, if these are known.
    pub types: Option<&'a Btf>,
    /// Where a task has its name.
    pub variables: &'a Variables,
}

impl<'a> From<&'a Kernel> for Known<'a> {
    fn from(kernel: &'a Kernel) -> Self {
        Self {
            symbols: &kernel.symbols,
            types: kernel.types.as_deref(),
            variables: &kernel.variables,
        }
    }
}
