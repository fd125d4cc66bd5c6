//! An instruction with probes on it.

use std::sync::Arc;

use guest_state::x86_64::{INT3, NOP};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};
use smallvec::SmallVec;

use crate::arena::Slot;
use crate::emulate::{Compiled, Touched};
use crate::engine::sites::foresight::Foresight;
use crate::engine::sites::jump::{Jump, Verdict};
use crate::engine::sites::probe::Probe;
use crate::engine::sites::switches::Switches;
use crate::probe::ProbeKind;

/// How a site's instruction is executed.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// By the engine.
    Emulate {
        compiled: Compiled,
        touched: Touched,
    },
    /// By the CPU, in a copy that jumps back.
    Boost {
        copy: Relocated,
        foresight: Foresight,
        /// As for a step, which is made instead when a round may fault.
        repeats: bool,
    },
    /// By the CPU, one instruction at a time: in a copy, or in place with all
    /// other vCPUs stopped.
    Step {
        copy: Option<Relocated>,
        foresight: Foresight,
        /// A repeated string instruction: a step is one round of it.
        repeats: bool,
        /// Vectors of the exceptions to expect of it.
        raises: [u8; 4],
    },
}

/// A copy of an instruction in the arena: the instruction, one byte that is a `nop` or, while an
/// active probe wants to know that the instruction is done, an int3; and the jump back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relocated {
    pub(crate) slot: Slot,
    /// The byte after the instruction.
    pub(crate) end: GuestVirtAddr,
    pub(crate) end_phys: GuestPhysAddr,
}

/// What the engine itself waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// The kernel is about to free its init text.
    FreesInitText,
    /// A module's text is complete; its init function has not run.
    ModuleLoaded,
    /// A module's init text is about to be freed.
    ModuleInitDone,
    /// A module is about to be freed.
    ModuleFreed,
    /// The kernel is about to end a task for an exception.
    EndsTask,
    /// The kernel is about to copy text to show it.
    ShowsText,
}

impl Milestone {
    /// Returns true if the engine waits for it while probes are in modules, or have stacks that may lead through
    /// modules.
    pub(crate) fn is_of_module(self) -> bool {
        matches!(
            self,
            Self::ModuleLoaded | Self::ModuleInitDone | Self::ModuleFreed
        )
    }

    /// Returns true if the engine waits for it while instructions of the guest's may be executed in the arena.
    pub(crate) fn is_of_oops(self) -> bool {
        matches!(self, Self::EndsTask | Self::ShowsText)
    }
}

/// The probes of a site; most sites have one.
pub(crate) type Probes = SmallVec<[Arc<Probe>; 1]>;

/// An address with a breakpoint of ours, or with one that is disarmed.
///
/// What a hit looks at comes first and lies in one line of the cache: with thousands of sites, each line that a hit
/// touches costs more than the work on it.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Site {
    /// The active ones of the probes, as of when the table was made that the site is in.
    pub(crate) active: Probes,
    pub(crate) virt: GuestVirtAddr,
    /// The byte under the int3.
    pub(crate) original: u8,
    /// Length of the instruction.
    pub(crate) len: u8,
    pub(crate) milestone: Option<Milestone>,
    /// Whether the int3, or a jump, is to be in the text.
    pub(crate) armed: bool,
    /// Whether a call of the function may begin or end here for an active return probe.
    pub(crate) follows: bool,
    /// Whether an active probe wants to know that the instruction is done.
    pub(crate) reports_done: bool,
    /// Whether a jump takes the place of the int3.
    pub(crate) verdict: Verdict,
    pub(crate) way: Arc<Way>,
    pub(crate) phys: GuestPhysAddr,
    pub(crate) probes: Probes,
    /// The module whose text it is in.
    pub(crate) module: Option<Arc<str>>,
}

impl Site {
    pub(crate) fn is_unused(&self) -> bool {
        self.probes.is_empty() && self.milestone.is_none()
    }

    /// The same site, armed if it has a milestone or an active probe.
    pub(crate) fn armed_if_wanted(self, switches: &Switches) -> Self {
        let is_active = |probe: &&Arc<Probe>| switches.is_active(probe.id);
        let active: Probes = self.probes.iter().filter(is_active).cloned().collect();
        let returns = |probe: &Arc<Probe>| {
            matches!(
                probe.kind,
                ProbeKind::Return { .. } | ProbeKind::Exits { .. }
            )
        };
        Self {
            armed: self.milestone.is_some() || !active.is_empty(),
            follows: active.iter().any(returns),
            reports_done: active.iter().any(|probe| probe.wants_post()),
            active,
            ..self
        }
    }

    /// Returns true if both sites are armed or neither is, and the same probes are active on them.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.armed == other.armed && are_same(&self.active, &other.active)
    }

    /// The jump that is to be in the text.
    pub(crate) fn jump(&self) -> Option<&Arc<Jump>> {
        match &self.verdict {
            Verdict::Jump(jump) if self.armed => Some(jump),
            _ => None,
        }
    }

    /// Returns true if the int3 is to be in the text.
    pub(crate) fn has_int3(&self) -> bool {
        self.armed && self.jump().is_none()
    }

    /// The instruction after this one.
    pub(crate) fn next(&self) -> GuestVirtAddr {
        self.virt.wrapping_add(u64::from(self.len))
    }

    pub(crate) fn wants_post(&self) -> bool {
        self.reports_done
    }

    /// The active probes.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.active.iter()
    }

    /// Returns true if it is a repeated string instruction, of which a step is one round.
    pub(crate) fn repeats(&self) -> bool {
        match *self.way {
            Way::Emulate { .. } => false,
            Way::Boost { repeats, .. } | Way::Step { repeats, .. } => repeats,
        }
    }

    /// The copy of the instruction, if there is one.
    pub(crate) fn copy(&self) -> Option<&Relocated> {
        match &*self.way {
            Way::Emulate { .. } => None,
            Way::Boost { copy, .. } => Some(copy),
            Way::Step { copy, .. } => copy.as_ref(),
        }
    }

    /// Writes the int3 or the jump, if the text is still the one that was decoded.
    pub(crate) fn plant(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        if let Some(jump) = self.jump() {
            return jump.plant(memory, self.phys);
        }
        if self.wants_post() {
            self.trap_when_done(memory)?;
        }
        memory.replace(self.phys, self.original, INT3)?;
        Ok(())
    }

    /// Has the copy of a boosted instruction trap if an active probe now wants to know that the
    /// instruction is done.
    pub(crate) fn trap_when_done(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        match &*self.way {
            Way::Boost { copy, .. } => copy.trap_when_done(memory, self.wants_post()),
            Way::Emulate { .. } | Way::Step { .. } => Ok(()),
        }
    }

    /// Puts the original text back, unless the guest has overwritten what is ours: then the text is
    /// the guest's. Returns true if nothing of a jump is left there.
    pub(crate) fn lift(&self, memory: &dyn GuestMemory) -> Result<bool, MemoryError> {
        if let Some(jump) = self.jump() {
            return jump.lift(memory, self.phys);
        }
        memory.replace(self.phys, INT3, self.original)?;
        if self.wants_post()
            && let Way::Boost { copy, .. } = &*self.way
        {
            copy.trap_when_done(memory, false)?;
        }
        Ok(true)
    }
}

/// Returns true if these are the same probes.
pub(crate) fn are_same(one: &[Arc<Probe>], other: &[Arc<Probe>]) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(one, other)| Arc::ptr_eq(one, other))
}

impl Relocated {
    /// Sets whether a vCPU that has executed the copy traps before the jump back. A vCPU that is
    /// between the two sees either byte, and both are right.
    pub(crate) fn trap_when_done(
        &self,
        memory: &dyn GuestMemory,
        on: bool,
    ) -> Result<(), MemoryError> {
        memory.write(self.end_phys, &[if on { INT3 } else { NOP }])
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn what_a_hit_looks_at_lies_in_one_line_of_the_cache() {
        assert!(offset_of!(Site, way) + size_of::<Arc<Way>>() <= 64);
    }
}
