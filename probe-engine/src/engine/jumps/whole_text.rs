//! What the optimizer knows of the guest, once it has looked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use guest_kernel::Kernel;
use guest_state::{GuestMemory, GuestVirtAddr};

use crate::detour::{self, BranchTargets};
use crate::engine::lock::{Guard, Lock, Rank};
use crate::engine::sites::table::Table;

/// Fewer idle detours than these are never worth looking at: it takes reading all of the guest's memory.
const WORTH: usize = 64;

/// What the optimizer knows of the guest.
#[derive(Debug)]
pub(crate) struct Optimizer {
    text: Lock<Option<WholeText>>,
    /// How many idle detours there have to be before it is worth checking which of them no task is in.
    worth: AtomicUsize,
}

impl Optimizer {
    pub(crate) fn new() -> Self {
        Self {
            text: Lock::new(Rank::Optimizer, None),
            worth: AtomicUsize::new(WORTH),
        }
    }

    /// What the kernel's text tells, if it was read. No other thread prepares jumps while this is
    /// held.
    pub(crate) fn text(&self) -> Guard<'_, Option<WholeText>> {
        self.text.lock()
    }

    /// Returns true if so many idle detours make it worth checking which of them no task is in.
    pub(crate) fn is_worth(&self, idle: usize) -> bool {
        idle >= self.worth.load(Ordering::Relaxed)
    }

    /// Notes that they have been checked. The idle detours that are left are in use, or look so: a new check is worth
    /// it only when there are many more.
    pub(crate) fn has_looked(&self, idle: usize) {
        self.worth.store((2 * idle).max(WORTH), Ordering::Relaxed);
    }
}

/// What the kernel's whole text tells of its parts.
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
