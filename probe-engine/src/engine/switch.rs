//! From one table to the next, in the guest's text and for its traps.

use std::sync::Arc;

use super::Engine;
use super::table::Table;
use crate::guest::{GuestMemory, MemoryError};

impl Engine {
    /// Makes the guest's text what `after` says instead of `before`, the table of now. With the guest
    /// running, that may either only remove or only add breakpoints.
    ///
    /// A breakpoint that is taken away is lifted before traps see the new table, and a new one
    /// planted after, so that no trap of ours is taken for the guest's. Call with the registry locked.
    ///
    /// # Errors
    /// Text that is no memory; then everything is as before.
    pub(super) fn switch(
        &self,
        memory: &dyn GuestMemory,
        before: &Arc<Table>,
        after: &Arc<Table>,
    ) -> Result<(), MemoryError> {
        let armed = |table: &Table, at| table.site(at).is_some_and(|site| site.armed);
        let removed: Vec<_> = before
            .sites()
            .filter(|site| site.armed && !armed(after, site.virt))
            .collect();
        let added: Vec<_> = after
            .sites()
            .filter(|site| site.armed && !armed(before, site.virt))
            .collect();
        let kept = after
            .sites()
            .filter(|site| site.armed && armed(before, site.virt));
        for (done, site) in removed.iter().enumerate() {
            if let Err(error) = site.lift(memory) {
                for site in &removed[..done] {
                    site.plant(memory)?;
                }
                return Err(error);
            }
        }
        self.publish(after);
        for site in kept {
            site.trap_when_done(memory)?;
        }
        for (done, site) in added.iter().enumerate() {
            if let Err(error) = site.plant(memory) {
                for site in &added[..done] {
                    site.lift(memory)?;
                }
                self.publish(before);
                for site in removed {
                    site.plant(memory)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
