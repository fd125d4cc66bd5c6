//! Installing the arena, vmprobe's memory in the guest.

use guest_state::StoppedGuest;

use super::Machine;

impl Machine {
    /// Installs the arena once the kernel is found. Without it, fewer probes work, and more slowly.
    /// So a failure is no error of the VM.
    pub(super) fn install_arena(&self, stopped: &dyn StoppedGuest) {
        if let Err(error) = self.engine.install_arena(stopped, self.vm.arena()) {
            tracing::warn!(vm = self.name, "no code can be put into the guest: {error}");
        } else if let Some(note) = self.engine.oops_note() {
            tracing::warn!(vm = self.name, "{note}");
        }
    }
}
