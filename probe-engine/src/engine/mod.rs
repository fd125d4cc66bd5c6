//! The probe engine: registers breakpoint probes and answers their traps.
//!
//! A probe is an int3 over the first byte of an instruction, in physical memory.
//! Several probes at one address share it. The hot path, [`Engine::on_breakpoint`],
//! takes a snapshot of an immutable table of sites and holds no lock while it
//! works; whoever changes probes builds the next table and swaps it in.
//!
//! Two orders keep a running guest right. Registering publishes the table before
//! the first int3 is written, so that no trap of ours is taken for the guest's.
//! Removing restores the byte before the site leaves the table; a trap that was
//! taken in between finds neither a site nor an int3 in memory and is resumed: it
//! executes the restored instruction. So even a removal without stopping the
//! vCPUs, as at the end of init text, is right.

mod placement;
mod registry;
mod table;
mod trap;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::addr::{GuestVirtAddr, ProbeId, VcpuId};
use crate::event::EventSink;
use crate::image_map::ImageMap;
use crate::probe::ProbeInfo;
use crate::symbols::Symbols;
use registry::Registry;
use table::Table;

/// What the monitor has to do with a vCPU after a trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Let it run with the registers as they now are.
    Resume,
    /// The int3 is the guest's own: let the guest have its exception.
    GiveBack,
    /// Stop all other vCPUs, call [`Engine::before_step`]; if it says so, single-step this one
    /// with interrupts blocked; call [`Engine::after_step`], then let all go on.
    ///
    /// The instruction may raise an exception that the engine can't foresee (#GP, #DE, #UD):
    /// the CPU then enters the guest's handler, which the step doesn't end. Bound the step:
    /// when it hasn't ended after some milliseconds, kick the vCPU, call `after_step` all the
    /// same (it plants the breakpoint again, wherever RIP is) and let the others go.
    StepAlone,
    /// Raise a page fault at RIP, as if the instruction weren't probed.
    PageFault {
        /// What CR2 becomes.
        address: GuestVirtAddr,
        /// Bits P, W and RSVD as the CPU would set them (SDM vol. 3A, 4.7).
        error_code: u32,
    },
    /// The vCPU has executed `hlt`, RIP is after it: put it into the halted state and end an
    /// interrupt shadow, which would keep it from waking up.
    Halt,
}

/// The probes of one VM. All methods may be called from several threads.
pub struct Engine {
    symbols: Symbols,
    sink: Arc<dyn EventSink>,
    /// What traps look at. Locked only to take or replace the pointer.
    table: RwLock<Arc<Table>>,
    /// The probes; held by whoever makes the next table.
    registry: Mutex<Registry>,
    stepping: Mutex<Vec<Stepping>>,
}

/// A lone step under way.
#[derive(Debug, Clone, Copy)]
struct Stepping {
    vcpu: VcpuId,
    site: GuestVirtAddr,
    /// Differs from the site where text is identity-mapped.
    rip: u64,
}

impl Engine {
    /// An engine with no probes. `image` is `None` while it isn't known where the
    /// kernel is in guest memory.
    pub fn new(symbols: Symbols, image: Option<ImageMap>, sink: Arc<dyn EventSink>) -> Self {
        Self {
            symbols,
            sink,
            table: RwLock::new(Arc::new(Table::new(image))),
            registry: Mutex::default(),
            stepping: Mutex::default(),
        }
    }

    /// Tells where the kernel is in guest memory, once that is known. As it was
    /// running unwatched until now, its init text counts as freed.
    pub fn set_image_map(&self, image: ImageMap) {
        let mut registry = self.registry();
        registry.init_freed = true;
        let mut table = Table::clone(&self.table());
        table.image = Some(image);
        self.publish(table);
    }

    /// Whether it is known where the kernel is in guest memory.
    pub fn has_image_map(&self) -> bool {
        self.table().image.is_some()
    }

    /// The kernel's symbols.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// All probes, in the order of their registration.
    pub fn list(&self) -> Vec<ProbeInfo> {
        self.registry().probes().map(|probe| probe.info()).collect()
    }

    /// The probe of that name.
    pub fn find(&self, name: &str) -> Option<ProbeId> {
        self.registry().by_name(name).map(|probe| probe.id)
    }

    /// Whether an int3 of ours is in the guest's text. While there is none, the
    /// monitor may leave the guest's breakpoints to the guest.
    pub fn wants_breakpoint_exits(&self) -> bool {
        !self.table().is_empty()
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Call with the registry locked, so that no other change is lost.
    fn publish(&self, table: Table) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stepping(&self) -> MutexGuard<'_, Vec<Stepping>> {
        self.stepping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("sites", &self.table().len())
            .finish_non_exhaustive()
    }
}
