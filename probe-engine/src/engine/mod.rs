//! The probe engine: registers probes and answers their traps.
//!
//! A probe is an int3 over the first byte of an instruction, in physical memory, or a debug
//! register. Several probes at one address share it. The hot path, `Engine::on_breakpoint`, takes
//! a snapshot of an immutable table of sites and holds no lock while it works; a change of probes
//! builds the next table and swaps it in.
//!
//! Two orders keep a running guest right. Registering publishes the table before
//! the first int3 is written, so that no trap of ours is taken for the guest's.
//! Removing restores the byte before the site leaves the table; a trap that was
//! taken in between finds neither a site nor an int3 in memory and is resumed: it
//! executes the restored instruction. So even a removal without stopping the
//! vCPUs, as at the end of init text, is right.

mod actions;
mod changes;
mod code;
mod debugger;
mod hits;
mod jumps;
mod life;
mod lock;
mod placement;
mod returns;
mod sites;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use actions::attendants::Attendants;
use arc_swap::ArcSwap;
use arc_swap::Guard;
use changes::registry::Registry;
use code::arena::CodeArena;
use debugger::state::DebuggerState;
use guest_kernel::ImageMap;
use guest_kernel::Kernel;
use guest_kernel::blacklist::Blacklist;
use guest_kernel::symbols::Symbols;
use hits::guest_clock::GuestClock;
use hits::known_modules::KnownModules;
use hits::stepping::Steps;
use jumps::outstanding::Outstanding;
use jumps::reader::Reader;
use jumps::whole_text::Optimizer;
use life::last_tables::LastTables;
use lock::{Lock, Rank};
use placement::shared_ways::SharedWays;
use returns::exits::Exits;
use returns::follower::Orphans;
use returns::replaced::Returns;
use sites::departed::Departed;
use sites::first_look::FirstLook;
use sites::probe::Probe;
use sites::table::Table;
use sites::wishes::optimization;

use crate::event::EventSink;
use crate::probe::{ProbeCounts, ProbeId, ProbeInfo};

pub use actions::attendants::{AnswerError, AttendError, Attendant, HeldHit};
pub use changes::draft::Draft;
pub use changes::removal::Removal;
pub use changes::switching::Switching;
pub use debugger::state::{Debugger, DebuggerError, Stop, StopReason};
pub use hits::known_modules::ModuleSymbol;
pub use hits::merge::Merger;
pub use hits::vcpu_stack::{StoppedVcpu, VcpuStack};
pub use jumps::prepared::Prepared;
pub use jumps::rings::Drained;
pub use returns::under_way::FollowedCall;

/// The probes of one VM. All methods may be called from several threads.
///
/// Its parts own their locks. A thread that needs several takes them in the order of `lock::Rank`.
pub struct Engine {
    kernel: Arc<Kernel>,
    vcpus: u32,
    /// The probes. Locked during a change of them.
    registry: Lock<Arc<Registry>>,
    /// What traps look at.
    table: ArcSwap<Table>,
    first_look: FirstLook,
    departed: Departed,
    arena: CodeArena,
    shared_ways: SharedWays,
    steps: Steps,
    clock: GuestClock,
    merger: Merger,
    returns: Returns,
    exits: Exits,
    orphans: Orphans,
    reader: Reader,
    optimizer: Optimizer,
    outstanding: Outstanding,
    last_tables: LastTables,
    known_modules: KnownModules,
    attendants: Attendants,
    debugger: DebuggerState,
}

impl Engine {
    /// Makes an engine with no probes, for a guest with `vcpus` vCPUs. The guest's kernel is in guest memory as `image`
    /// tells, and at the addresses that `kernel` tells.
    pub fn new(
        kernel: impl Into<Arc<Kernel>>,
        image: ImageMap,
        vcpus: u32,
        sink: Arc<dyn EventSink>,
    ) -> Self {
        Self {
            kernel: kernel.into(),
            vcpus,
            registry: Lock::new(Rank::Registry, Default::default()),
            table: ArcSwap::from_pointee(Table::new(image)),
            first_look: FirstLook::default(),
            departed: Departed::new(),
            arena: CodeArena::new(),
            shared_ways: SharedWays::new(),
            steps: Steps::new(),
            clock: GuestClock::default(),
            merger: Merger::new(sink),
            returns: Returns::new(),
            exits: Exits::new(),
            orphans: Orphans::new(),
            reader: Reader::new(),
            optimizer: Optimizer::new(),
            outstanding: Outstanding::default(),
            last_tables: LastTables::new(),
            known_modules: KnownModules::new(),
            attendants: Attendants::new(),
            debugger: DebuggerState::new(),
        }
    }

    /// Has the engine take the kernel for one that has made all changes to its own text that it makes only once, and
    /// has freed its init text. A guest that is watched from its first instruction tells that by itself.
    pub fn assume_started(&self) {
        let _registry = self.registry.lock();
        let mut table = Table::clone(&self.table());
        table.init_freed = true;
        self.publish(&Arc::new(table));
    }

    /// What the kernel's image tells.
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    /// The kernel's symbols.
    pub fn symbols(&self) -> &Symbols {
        &self.kernel.symbols
    }

    /// What in the kernel can't be probed.
    pub fn blacklist(&self) -> &Blacklist {
        &self.kernel.blacklist
    }

    /// Returns true if the kernel has freed its init text, and so made all changes to its own text
    /// that it makes only once.
    pub fn is_started(&self) -> bool {
        self.table().init_freed
    }

    /// All probes, in the order of their registration.
    pub fn list(&self) -> Vec<ProbeInfo> {
        let registry = self.registry.lock();
        Self::infos(&self.table(), registry.probes())
    }

    /// At most `most` of the probes that were registered after `id`, or of all if that is `None`, in the order of their
    /// registration.
    pub fn list_after(&self, id: Option<ProbeId>, most: usize) -> Vec<ProbeInfo> {
        let registry = self.registry.lock();
        Self::infos(&self.table(), registry.after(id).take(most))
    }

    /// How often each probe was hit so far, in the order of their registration.
    pub fn counts(&self) -> Vec<ProbeCounts> {
        let registry = self.registry.lock();
        registry.probes().map(|probe| probe.counts()).collect()
    }

    /// How many probes there are, gone ones too.
    pub fn probe_count(&self) -> usize {
        self.registry.lock().probes().count()
    }

    /// The probes of that name, in the order of their registration.
    pub fn named(&self, name: &str) -> Vec<ProbeId> {
        let registry = self.registry.lock();
        registry.by_name(name).map(|probe| probe.id).collect()
    }

    /// Returns true if an int3 of ours is in the guest's text, a return address leads to one, or a
    /// task may come to one in a detour. While there is none, the monitor may leave the guest's
    /// breakpoints to the guest.
    fn wants_breakpoints(&self) -> bool {
        self.table().has_int3() || self.returns.any() || self.reader.may_wait_in_detour()
    }

    fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// Publishes a settled table. Call with the registry locked, so that no other change is lost.
    fn publish(&self, table: &Arc<Table>) {
        // A task that is in a detour leaves a record even when the jump has gone: see `drain`.
        if table.has_jumps() {
            self.merger.set_active(true);
        }
        let waited = self.table().waits_for_modules();
        self.first_look.set(table.places());
        self.table.store(Arc::clone(table));
        if !(waited && table.waits_for_modules()) {
            // What is known of modules holds only while the engine waits for them to come and go.
            self.known_modules.forget();
        }
        self.outstanding.add();
    }

    /// What clients are told of probes, by this table.
    fn infos<'a>(
        table: &Table,
        probes: impl IntoIterator<Item = &'a Arc<Probe>>,
    ) -> Vec<ProbeInfo> {
        let info = |probe: &Arc<Probe>| {
            let optimization = optimization(table.site(probe.address()));
            probe.info(&table.switches, optimization)
        };
        probes.into_iter().map(info).collect()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("sites", &self.table().len())
            .finish_non_exhaustive()
    }
}
