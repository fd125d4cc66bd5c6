//! Executable memory of ours in the guest.

use guest_state::StoppedGuest;

use super::Machine;

impl Machine {
    /// Installs the arena, the kernel being found. Probes work without, only slower and fewer of
    /// them: it is no error of the VM.
    pub(super) fn install_arena(&self, stopped: &dyn StoppedGuest) {
        if let Err(error) = self.engine.install_arena(stopped, self.vm.arena()) {
            tracing::warn!(vm = self.name, "no code can be put into the guest: {error}");
        } else if let Some(note) = self.engine.oops_note() {
            tracing::warn!(vm = self.name, "{note}");
        }
    }
}
