//! The guest's own kprobes beside our probes.
//!
//! The guest decodes its text itself when it registers a kprobe, and refuses what it can't make sense of: an int3 of
//! ours in what it would copy, the middle of a jump of ours. But it doesn't look again at text that it has once read.
//! So all that we write into its text has to stay clear of its kprobes, armed or not. A jump of ours stays where it is
//! as long as a kprobe is on it, as the kprobe has saved the jump's first byte.

use std::ops::Range;
use std::sync::Arc;

use guest_kernel::kprobes::{GuestKprobe, GuestKprobes};
use guest_state::x86_64::INT3;
use guest_state::{GuestMemory, GuestVirtAddr, StoppedGuest};

use crate::engine::Engine;
use crate::engine::sites::jump::Verdict;
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;
use crate::error::{ChangeError, RegisterError};
use crate::probe::NoJump;

impl Engine {
    /// The kprobes of a stopped guest. From now on they can also be found while it runs.
    pub(crate) fn guest_kprobes(&self, guest: &dyn StoppedGuest) -> GuestKprobes {
        if self.kernel.kprobes.is_some() {
            // Remembers the tables by which the kprobes are read.
            self.kernel_tables(guest);
        }
        self.known_kprobes(guest.memory())
    }

    /// The guest's kprobes, by the page tables that it had when it stood still.
    pub(crate) fn known_kprobes(&self, memory: &dyn GuestMemory) -> GuestKprobes {
        let table = self.table();
        match &self.kernel.kprobes {
            Some(reader) => reader.read(memory, &table.image, self.last_tables.get()),
            None => GuestKprobes::default(),
        }
    }

    /// Checks that the guest's kprobes leave room for those of these sites that weren't armed before.
    pub(crate) fn may_arm(
        &self,
        guest: &dyn StoppedGuest,
        before: &Table,
        come: &[Arc<Site>],
    ) -> Result<(), ChangeError> {
        let was_armed = |at| before.site(at).is_some_and(|site| site.armed);
        let mut added = come.iter().filter(|site| !was_armed(site.virt)).peekable();
        if added.peek().is_none() {
            return Ok(());
        }
        let kprobes = self.guest_kprobes(guest);
        if kprobes.changing {
            return Err(ChangeError::KprobesChanging);
        }
        match added.find_map(|site| Some((site, conflict(&kprobes, before, site.virt)?))) {
            None => Ok(()),
            Some((site, conflict)) => Err(ChangeError::GuestKprobe {
                address: site.virt,
                at: conflict.at,
                how: conflict.how,
            }),
        }
    }

    /// The guest's kprobes, as they have to be known to make jumps; `None` if the guest is changing them just now, and
    /// it is worth while to wait until it has.
    pub(crate) fn kprobes_for_jumps(&self, guest: &dyn StoppedGuest) -> Option<GuestKprobes> {
        let kprobes = self.guest_kprobes(guest);
        let waits = self.outstanding.defer(kprobes.changing);
        (!waits).then_some(kprobes)
    }
}

/// A kprobe of the guest's that a breakpoint of ours would get in the way of.
pub(crate) struct Conflict {
    pub(crate) at: GuestVirtAddr,
    /// Where the kprobe is, seen from our breakpoint, as a clause of a message.
    pub(crate) how: &'static str,
}

/// The kprobe that keeps a breakpoint from `at`.
pub(crate) fn conflict(
    kprobes: &GuestKprobes,
    table: &Table,
    at: GuestVirtAddr,
) -> Option<Conflict> {
    if kprobes.is_empty() {
        return None;
    }
    let found = |probe: &GuestKprobe, how| {
        let at = probe.at;
        Some(Conflict { at, how })
    };
    if let Some(probe) = kprobes.overlapping(at..at.wrapping_add(1)) {
        let how = if probe.at == at {
            "on the same instruction"
        } else {
            "and has copied this instruction, to make a jump of its kprobe"
        };
        return found(probe, how);
    }
    // The guest has saved the first byte of a jump of ours: the jump stays, and no int3 can be in its middle.
    let jump = table.jump_over(at)?;
    found(kprobes.on(jump)?, "on a jump of ours over this instruction")
}

/// Checks that the guest's kprobes leave room for a breakpoint on an instruction.
pub(crate) fn check(
    kprobes: &GuestKprobes,
    table: &Table,
    place: &str,
    at: GuestVirtAddr,
) -> Result<(), RegisterError> {
    match conflict(kprobes, table, at) {
        None => Ok(()),
        Some(conflict) => Err(RegisterError::GuestKprobe {
            place: place.to_owned(),
            at: conflict.at,
            how: conflict.how,
        }),
    }
}

/// Returns why no jump can take these bytes' place, if a kprobe of the guest's is in them.
pub(crate) fn in_region(kprobes: &GuestKprobes, region: Range<GuestVirtAddr>) -> Option<NoJump> {
    let at = kprobes.overlapping(region.clone())?.at;
    Some(NoJump::GuestKprobe { at, region })
}

/// Sites that stay breakpoints because of something of the guest's that isn't there any more.
pub(crate) fn released(
    table: &Table,
    memory: &dyn GuestMemory,
    kprobes: &GuestKprobes,
) -> Vec<Arc<Site>> {
    let is_released = |site: &&Arc<Site>| {
        let Verdict::Not(why) = &site.verdict else {
            return false;
        };
        let Some(range) = why.guest_in() else {
            return false;
        };
        let mut text = [0];
        let at = site
            .phys
            .wrapping_add(range.start.0.wrapping_sub(site.virt.0));
        let is_read = memory.read(at, &mut text).is_ok();
        table.unmask(range.start, &mut text);
        let int3 = is_read && text == [INT3];
        !kprobes.changing && kprobes.overlapping(range).is_none() && !int3
    };
    table.sites().filter(is_released).cloned().collect()
}
