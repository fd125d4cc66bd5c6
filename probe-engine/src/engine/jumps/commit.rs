//! Putting prepared jumps into the guest's text, all at once.

use std::sync::Arc;

use guest_kernel::kprobes::GuestKprobes;
use guest_state::{GuestMemory, StoppedGuest};

use crate::engine::Engine;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::jumps::prepared::{PlannedJumps, Prepared};
use crate::engine::sites::guest_kprobes;
use crate::engine::sites::jump::Verdict;
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;
use crate::engine::sites::text_read::TextRead;
use crate::error::ChangeError;
use crate::probe::NoJump;

impl Engine {
    /// Puts prepared jumps into the guest's text, and returns how many probes are jumps now that weren't before. Jumps
    /// that don't fit any more, because of what has changed since, wait again. What the change has replaced is freed
    /// with what was prepared.
    ///
    /// # Errors
    /// Text that is no memory.
    pub fn commit_jumps(
        &self,
        guest: &dyn StoppedGuest,
        prepared: &Prepared,
    ) -> Result<usize, ChangeError> {
        let memory = guest.memory();
        {
            let _registry = self.registry.lock();
            self.tidy_calls(guest);
            self.take_back(memory)?;
            if prepared.crowded {
                self.reclaim(guest);
            }
        }
        if prepared.crowded {
            self.optimizer.has_looked(self.arena.idle_detours());
            self.outstanding.add();
        }
        let mut change = self.change(guest);
        let now = change.generation();
        let kprobes = self.kprobes_for_jumps(guest);
        let planned = match &prepared.planned {
            Some((planned, then))
                if kprobes.as_ref() == Some(then) && planned.is_current(&now, memory) =>
            {
                planned
            }
            _ => &self.plan_jumps(memory, now, kprobes.as_ref(), &prepared.verdicts),
        };
        change.commit::<ChangeError>(&planned.plan)?;
        Ok(planned.placed)
    }

    /// Works out the change that makes jumps of those that fit. The others wait again, as all do without a list of
    /// the guest's kprobes.
    pub(crate) fn plan_jumps(
        &self,
        memory: &dyn GuestMemory,
        before: Generation,
        kprobes: Option<&GuestKprobes>,
        verdicts: &[(Arc<Site>, Verdict)],
    ) -> PlannedJumps {
        let mut table = Table::clone(&before.table);
        let (mut text, mut whole) = (TextRead::default(), true);
        let mut placed = 0;
        let is_jump = |(_, verdict): &(_, Verdict)| matches!(verdict, Verdict::Jump(_));
        if let Some(kprobes) = kprobes.filter(|kprobes| !kprobes.changing)
            && verdicts.iter().any(is_jump)
        {
            for (located, milestone) in self.find_oopses(memory, kprobes, &before.table) {
                let decoded = &located.text;
                whole &= text.add(&before.table, memory, decoded.start, decoded.bytes());
                self.wait_at(&mut table, located, milestone);
            }
        }
        for (site, verdict) in verdicts {
            let Verdict::Jump(jump) = verdict else {
                table.judge_same(site, verdict.clone());
                continue;
            };
            let region = jump.region.range();
            let refused = match kprobes {
                Some(kprobes) if kprobes.changing => Some(NoJump::GuestKprobesChange { region }),
                Some(kprobes) => guest_kprobes::in_region(kprobes, region),
                None => None,
            };
            if let Some(why) = refused {
                table.judge_same(site, Verdict::Not(Arc::new(why)));
                self.outstanding.add();
                continue;
            }
            let fits = kprobes.is_some()
                && !table.switches.jumpless
                && table.inside(site.virt, jump.len()).is_none()
                && text.add_from(&before.table, memory, site, &jump.region.bytes)
                && table.judge_same(site, verdict.clone());
            if fits {
                placed += site.enabled().count();
            } else {
                self.outstanding.add();
            }
        }
        let registry = Arc::clone(&before.registry);
        PlannedJumps {
            plan: Plan::new(before, registry, table),
            placed,
            text: whole.then_some(text),
        }
    }
}
