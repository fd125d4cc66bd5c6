//! Executable memory of ours in the guest.

use probe_engine::addr::GuestPhysAddr;
use probe_engine::arena::{Part, Region};
use vmm::{ArenaMemory, Stretch};

use super::Machine;
use crate::guest::StoppedVm;

impl Machine {
    /// Installs the arena, the kernel being found. Probes work without, only slower and fewer of
    /// them: it is no error of the VM.
    pub(super) fn install_arena(&self, stopped: &StoppedVm<'_>) {
        let region = region(self.vm.arena());
        if let Err(error) = self.engine.install_arena(stopped, region) {
            tracing::warn!(vm = self.name, "no code can be put into the guest: {error}");
        } else if let Some(note) = self.engine.oops_note() {
            tracing::warn!(vm = self.name, "{note}");
        }
    }
}

/// The engine's view of the memory.
fn region(memory: ArenaMemory) -> Region {
    let part = |stretch: Stretch| Part {
        phys: GuestPhysAddr(stretch.phys),
        len: stretch.len,
    };
    Region {
        tables: GuestPhysAddr(memory.tables),
        code: part(memory.code),
        data: part(memory.data),
    }
}
