//! What the optimizer knows of the guest.

use std::collections::HashSet;

use guest_kernel::Kernel;
use guest_state::{GuestMemory, GuestVirtAddr};

use crate::detour::{self, BranchTargets};
use crate::engine::sites::table::Table;

/// What the optimizer knows of the guest, once it has looked.
#[derive(Debug, Default)]
pub(crate) struct Optimizer {
    pub(crate) text: Option<WholeText>,
    /// How many idle detours there have to be before it is worth looking which of them nobody is in.
    pub(crate) worth: usize,
}

/// What all of the kernel's text tells of its parts.
#[derive(Debug)]
pub(crate) struct WholeText {
    pub(crate) targets: BranchTargets,
    /// Functions that run without their CPU's GS base.
    pub(crate) without_gs: HashSet<GuestVirtAddr>,
}

impl WholeText {
    /// Reads all of the text, as it is without our breakpoints.
    pub(crate) fn of(kernel: &Kernel, table: &Table, memory: &dyn GuestMemory) -> Self {
        let symbols = &kernel.symbols;
        let range = symbols.text();
        let len = (range.end.0 - range.start.0) as usize;
        let text = table.text(memory, range.start, len).and_then(Result::ok);
        let text = text.unwrap_or_default();
        let inside = |address: &GuestVirtAddr| range.contains(address);
        let mut starts: Vec<_> = symbols.iter().map(|it| it.address).filter(inside).collect();
        starts.sort_unstable();
        let mut targets = BranchTargets::of(range.start, &text, starts);
        for label in &kernel.landings.labels {
            targets.insert(*label);
        }
        Self {
            targets,
            without_gs: detour::functions_without(symbols, range.start, &text),
        }
    }
}
