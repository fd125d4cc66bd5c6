//! From breakpoints to jumps, and back.
//!
//! A jump is prepared while the guest runs: its region is found, and its detour is written to memory that no task uses
//! yet. Then all that are ready go into the text at once, while all vCPUs stand still. A site that has changed in
//! between is prepared again: sites are never changed, only replaced, so a site that is still the same object has not
//! changed.

use std::collections::HashMap;
use std::sync::Arc;

use guest_kernel::kprobes::GuestKprobes;
use guest_state::GuestMemory;
use guest_state::x86_64::MAX_INSTRUCTION_LEN;

use crate::arena::{Arena, PlaceError};
use crate::calls::layout;
use crate::detour::{self, Environment, Ground, Pattern, Tag, live};
use crate::engine::Engine;
use crate::engine::jumps::module_text::ModuleText;
use crate::engine::jumps::prepared::Prepared;
use crate::engine::jumps::whole_text::WholeText;
use crate::engine::placement::body::{Body, KernelBody, ModuleName};
use crate::engine::sites::guest_kprobes;
use crate::engine::sites::jump::{Jump, Verdict};
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;
use crate::probe::{NoJump, Place};

/// Bytes behind a probed instruction that are looked at: more than a region has.
const AHEAD: u64 = 128;

/// The modules that were read for one look at the waiting sites.
type ModuleTexts = HashMap<ModuleName, Result<ModuleText, NoJump>>;

impl Engine {
    /// Returns true if probes wait to become jumps, or for the reason why not, and it is time to
    /// look.
    pub fn has_waiting(&self) -> bool {
        self.outstanding.any() && self.is_started()
    }

    /// Prepares jumps for the sites that wait, while the guest runs. Those that can't become jumps
    /// get their reason at once.
    pub fn prepare_jumps(&self, memory: &dyn GuestMemory) -> Prepared {
        if !self.is_started() || !self.outstanding.take() {
            return Prepared::default();
        }
        let mut text = self.optimizer.text();
        let mut modules = HashMap::new();
        let table = self.table();
        let kprobes = self.known_kprobes(memory);
        let mut waiting: Vec<_> = table.waiting().cloned().collect();
        waiting.extend(guest_kprobes::released(&table, memory, &kprobes));
        waiting.sort_unstable_by_key(|site| site.virt);
        let environment = match table.switches.jumpless {
            true => Err(NoJump::SwitchedOff),
            false => self.environment(memory),
        };
        let mut ready = Vec::new();
        let mut not = Vec::new();
        let mut crowded = false;
        for site in waiting {
            let jump = environment.clone().and_then(|environment| {
                let texts = (&mut *text, &mut modules);
                self.prepare(texts, memory, (&table, &kprobes), &site, &environment)
            });
            match jump {
                Ok(jump) => ready.push((site, Verdict::Jump(Arc::new(jump)))),
                Err(why)
                    if why.is_crowded() && self.optimizer.is_worth(self.arena.idle_detours()) =>
                {
                    crowded = true;
                }
                // The engine isn't notified when that is over.
                Err(NoJump::ModuleStarts) => self.outstanding.add(),
                Err(why) => not.push((site, Arc::new(why))),
            }
        }
        self.publish_verdicts(&table, not);
        let tripped = table.sites().filter(|site| {
            let jump = site.jump();
            jump.is_some_and(|jump| jump.is_tripped())
        });
        let why = Arc::new(NoJump::Tripwire);
        ready.extend(tripped.map(|site| (Arc::clone(site), Verdict::Not(Arc::clone(&why)))));
        if !table.all_held().is_empty() || self.table().waits_for_guest() {
            // The engine isn't notified when the guest gives one back, or takes a kprobe of its own
            // away.
            self.outstanding.add();
        }
        let planned = (!ready.is_empty() && !kprobes.changing).then(|| {
            let planned = self.plan_jumps(memory, self.generation(), Some(&kprobes), &ready);
            (planned, kprobes)
        });
        Prepared {
            planned,
            verdicts: ready,
            takes_back: self.may_take_back(memory),
            tidies: self.outstanding.take_untidy_calls()
                || self.outstanding.take_crowded_calls() && self.any_call_has_ended(memory),
            crowded,
        }
    }

    /// Sets the reasons why sites stay breakpoints, unless what was looked at has changed since: the site itself, or,
    /// where the reason holds only for now, anything in the table. Then the site waits on.
    fn publish_verdicts(&self, looked_at: &Arc<Table>, verdicts: Vec<(Arc<Site>, Arc<NoJump>)>) {
        if verdicts.is_empty() {
            return;
        }
        let _registry = self.registry.lock();
        let now = self.table();
        let is_same = Arc::ptr_eq(&now, looked_at);
        let mut table = Table::clone(&now);
        for (site, why) in verdicts {
            let holds = is_same || !why.for_now();
            if !(holds && table.judge_same(&site, Verdict::Not(why))) {
                self.outstanding.add();
            }
        }
        self.table.store(Arc::new(table));
    }

    /// Returns true if probes may become jumps at all.
    pub fn is_optimizing(&self) -> bool {
        !self.table().switches.jumpless
    }

    /// Finds the jump for a site and writes its detour.
    fn prepare(
        &self,
        (whole_text, modules): (&mut Option<WholeText>, &mut ModuleTexts),
        memory: &dyn GuestMemory,
        (table, kprobes): (&Table, &GuestKprobes),
        site: &Site,
        environment: &Environment,
    ) -> Result<Jump, NoJump> {
        let purpose = site.wants_jump(&table.switches)?;
        if purpose.follow.is_some() {
            self.reader.can_follow()?;
        }
        let kernel = KernelBody {
            kernel: &self.kernel,
            table,
            memory,
            kprobes,
        };
        let module = match &site.module {
            None => None,
            Some(name) => {
                let read = || self.module_text(memory, (table, kprobes), name);
                let text = modules.entry(Arc::clone(name)).or_insert_with(read);
                Some(text.as_ref().map_err(NoJump::clone)?)
            }
        };
        let in_module = module.map(|module| module.loaded.body(memory, table, kprobes));
        let body: &dyn Body = match &in_module {
            Some(body) => body,
            None => &kernel,
        };
        let unreadable = |reason: String| NoJump::Unreadable { reason };
        let function = body.function(&Place::Address(site.virt));
        let function = function.map_err(|error| unreadable(error.to_string()))?;
        let (targets, without_gs, landings) = match module {
            Some(module) => (&module.targets, &module.without_gs, module.landings()),
            None => {
                let read = || WholeText::of(&self.kernel, table, memory);
                let whole = whole_text.get_or_insert_with(read);
                (&whole.targets, &whole.without_gs, &self.kernel.landings)
            }
        };
        if detour::is_early(&function.name) || without_gs.contains(&function.start) {
            return Err(NoJump::EarlyCode);
        }
        let head = function.offset as usize;
        let end = function.start.wrapping_add(function.size);
        let len = (function.offset + AHEAD).min(function.size) as usize;
        let text = body
            .text(function.start, len.max(head + MAX_INSTRUCTION_LEN))
            .and_then(Result::ok);
        let text = text.ok_or_else(|| unreadable("its text can't be read".to_owned()))?;
        let ahead = text.get(head..).unwrap_or_default();
        let is_free = |range| detour::is_free(body.blacklist(), range);
        let ground = Ground {
            text: ahead,
            function_end: end,
            is_free: &is_free,
            expects_fault: &|at| body.expects_fault(at),
            is_target: &|range| targets.any(range),
            is_fix_up: &|range| landings.any_fix_up(range),
        };
        let region = detour::region(site.virt, &ground)?;
        if let Some(module) = module {
            module.admits(body, site, &region)?;
        }
        if let Some(why) = guest_kprobes::in_region(kprobes, region.range()) {
            return Err(why);
        }
        if let Some(other) = table.inside(site.virt, region.bytes.len()) {
            return Err(NoJump::ProbeInside { at: other.virt });
        }
        let own = region.bytes.get(..region.end.into()).unwrap_or_default();
        let dead = live::dead(own, site.virt);
        let pattern = Pattern::of(&region);
        let build = |number, at| {
            let tag = Tag::numbered(number);
            detour::generate(environment, &region, dead, &purpose, tag, at)
        };
        let numbers = self.reader.cells().min(layout::NUMBERS);
        let busy = self
            .reader
            .busy_detours(memory, site.virt, &purpose.followers);
        let place =
            |arena: &mut Arena| arena.detour(memory, site.virt, pattern, (numbers, &busy), build);
        let placed = self.arena.with(place).ok_or_else(|| {
            let reason = self.arena.note();
            NoJump::NoArena { reason }
        })?;
        let placed = placed.map_err(|error| {
            let reason = error.to_string();
            match error {
                PlaceError::NoAddress { .. } => NoJump::NoAddress { reason },
                PlaceError::NoNumber { .. } => NoJump::TooMany { reason },
                PlaceError::Build(_) | PlaceError::Memory(_) => NoJump::NoDetour { reason },
            }
        })?;
        Ok(Jump::new(region, purpose, placed))
    }
}
