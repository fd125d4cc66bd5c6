//! Room in the arena for copies and detours.

use guest_state::{ArenaMemory, StoppedGuest, VcpuId};

use crate::arena::{InstallError, MappedRam};
use crate::engine::Engine;

/// The RIPs of all vCPUs, if they can be read.
pub(crate) fn rips(guest: &dyn StoppedGuest) -> Option<Vec<u64>> {
    let rip = |vcpu| Some(guest.registers(vcpu).ok()?.rip);
    (0..guest.vcpus()).map(VcpuId).map(rip).collect()
}

impl Engine {
    /// Makes executable memory of ours in the guest. Without it every probe works
    /// that can be emulated or stepped in place, and there are no return probes.
    ///
    /// # Errors
    /// The guest's page tables are not as expected; [`Self::arena_note`] tells it
    /// from then on.
    pub fn install_arena(
        &self,
        guest: &dyn StoppedGuest,
        region: ArenaMemory,
    ) -> Result<(), InstallError> {
        let table = self.table();
        let (memory, symbols) = (guest.memory(), &self.kernel.symbols);
        let ram = MappedRam::of(&guest.ram(), guest.has_gigabyte_pages());
        let trampoline = self
            .arena
            .install(memory, &table.image, symbols, (region, ram))?;
        self.returns.lead_to(trampoline);
        Ok(())
    }

    /// Why there is no executable memory of ours in the guest; empty when there is.
    pub fn arena_note(&self) -> String {
        self.arena.note()
    }

    /// Makes room for this many more copies, if need be by giving up those that no probe and no
    /// task of the guest uses.
    pub(crate) fn make_room(&self, guest: &dyn StoppedGuest, copies: usize) {
        if !self.arena.has_room(copies) {
            self.reclaim(guest);
        }
    }

    /// Gives up copies and detours that no probe and no task of the guest uses.
    ///
    /// Before a number of a detour is given out again, all that was recorded under it has been read and counted. No
    /// task is left that could record more.
    pub(crate) fn reclaim(&self, guest: &dyn StoppedGuest) {
        let memory = guest.memory();
        self.settle(memory);
        let (Ok(kept), Some(rips)) = (self.reader.recording(memory), rips(guest)) else {
            return;
        };
        self.reader.hold(|state| {
            self.arena.with(|arena| {
                // Where memory can't be read nothing is given up, and instructions that get no copy
                // are stepped in place.
                let _freed = arena.reclaim(memory, &guest.ram(), &rips, &kept);
                if let Some(state) = state {
                    state.forget_detours(memory, |number| !arena.has_detour(number));
                }
            });
        });
    }
}
