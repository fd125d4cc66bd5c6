//! Putting prepared jumps into the guest's text, all at once.

use std::sync::Arc;

use guest_kernel::kprobes::GuestKprobes;
use guest_state::{GuestMemory, StoppedGuest};

use crate::engine::Engine;
use crate::engine::changes::change::Change;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::jumps::prepared::{PlannedJumps, Prepared};
use crate::engine::sites::guest_kprobes;
use crate::engine::sites::jump::{Jump, Verdict};
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;
use crate::engine::sites::text_read::TextRead;
use crate::error::ChangeError;
use crate::probe::NoJump;

impl Engine {
    /// Puts prepared jumps into the guest's text, but those that don't fit any more because of what has
    /// changed since: they wait again. How many probes are jumps now that weren't before. What the change has
    /// replaced is freed with what was prepared.
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
        let before = change.generation();
        let kprobes = self.kprobes_for_jumps(guest);
        if let Some(planned) = &prepared.planned
            && let Some(kprobes) = &kprobes
            && planned.is_current(&before, memory, kprobes)
        {
            change.commit::<ChangeError>(&planned.plan)?;
            return Ok(planned.placed);
        }
        self.commit_fitting(&mut change, before, kprobes.as_ref(), &prepared.verdicts)
    }

    /// Makes jumps of those that fit now. Without a list of the guest's kprobes all of them wait again.
    fn commit_fitting(
        &self,
        change: &mut Change<'_>,
        before: Generation,
        kprobes: Option<&GuestKprobes>,
        verdicts: &[(Arc<Site>, Verdict)],
    ) -> Result<usize, ChangeError> {
        let memory = change.guest.memory();
        let mut table = Table::clone(&before.table);
        let mut placed = 0;
        let is_jump = |(_, verdict): &(_, Verdict)| matches!(verdict, Verdict::Jump(_));
        if let Some(kprobes) = kprobes.filter(|kprobes| !kprobes.changing)
            && verdicts.iter().any(is_jump)
        {
            self.wait_for_oopses(memory, kprobes, &mut table);
        }
        for (site, verdict) in verdicts {
            let Verdict::Jump(jump) = verdict else {
                table.judge_same(site, verdict.clone());
                continue;
            };
            let refused = match kprobes {
                None => None,
                Some(kprobes) if kprobes.changing => Some(NoJump::GuestKprobesChange {
                    region: jump.region.range(),
                }),
                Some(kprobes) => guest_kprobes::in_region(kprobes, jump.region.range()),
            };
            if kprobes.is_none() || refused.is_some() {
                if let Some(why) = refused {
                    table.judge_same(site, Verdict::Not(Arc::new(why)));
                }
                self.outstanding.add();
                continue;
            }
            let text = before.table.text(memory, site.virt, jump.len());
            let same_text = matches!(text, Some(Ok(text)) if text == jump.region.bytes);
            let is_free = table.inside(site.virt, jump.len()).is_none();
            if same_text
                && is_free
                && !before.table.jumpless
                && table.judge_same(site, verdict.clone())
            {
                placed += site.enabled().count();
            } else {
                self.outstanding.add();
            }
        }
        let registry = Arc::clone(&before.registry);
        change.commit::<ChangeError>(&Plan::new(before, registry, table))?;
        Ok(placed)
    }

    /// Works out the change that puts all that is ready into the table; `None` if something doesn't fit.
    pub(crate) fn plan_jumps(
        &self,
        memory: &dyn GuestMemory,
        verdicts: &[(Arc<Site>, Verdict)],
    ) -> Option<PlannedJumps> {
        if verdicts.is_empty() {
            return None;
        }
        let before = self.generation();
        let mut table = Table::clone(&before.table);
        let jumps: Vec<(&Arc<Site>, &Arc<Jump>)> = verdicts.iter().filter_map(jump).collect();
        let oopses = match jumps.is_empty() {
            true => Vec::new(),
            // The stop looks whether the guest has any.
            false => self.find_oopses(memory, &GuestKprobes::default(), &table),
        };
        let decoded = jumps
            .iter()
            .map(|(site, jump)| (site.virt, &jump.region.bytes[..]));
        let decoded = decoded.chain(oopses.iter().map(|(it, _)| (it.text.0, &it.text.1[..])));
        let text = TextRead::of(&table, memory, decoded)?;
        for (located, milestone) in oopses {
            self.wait_at(&mut table, located, milestone);
        }
        for (site, verdict) in verdicts {
            if !table.judge_same(site, verdict.clone()) {
                return None;
            }
        }
        let fits = |(site, jump): &(&Arc<Site>, &Arc<Jump>)| {
            !table.jumpless && table.inside(site.virt, jump.len()).is_none()
        };
        if !jumps.iter().all(fits) {
            return None;
        }
        let registry = Arc::clone(&before.registry);
        Some(PlannedJumps {
            placed: jumps.iter().map(|(site, _)| site.enabled().count()).sum(),
            plan: Plan::new(before, registry, table),
            text,
        })
    }
}

fn jump((site, verdict): &(Arc<Site>, Verdict)) -> Option<(&Arc<Site>, &Arc<Jump>)> {
    match verdict {
        Verdict::Jump(jump) => Some((site, jump)),
        Verdict::Waiting | Verdict::Not(_) => None,
    }
}
