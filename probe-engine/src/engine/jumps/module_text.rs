//! What the optimizer knows of a module's text.

use std::collections::HashSet;

use guest_kernel::blacklist::{Landings, Reason};
use guest_kernel::kprobes::GuestKprobes;
use guest_kernel::modules::ModuleState;
use guest_state::{GuestMemory, GuestVirtAddr};

use crate::detour::{self, BranchTargets, Region};
use crate::engine::Engine;
use crate::engine::placement::body::Body;
use crate::engine::placement::loaded::Loaded;
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;
use crate::insn::decode;
use crate::probe::NoJump;

/// What a kernel for one CPU has in the place of `lock` (`alternatives_smp_unlock` in
/// `arch/x86/kernel/alternative.c`).
const UNLOCKED: u8 = 0x3e;

/// A loaded module, and what its whole text tells of its parts.
///
/// It is read while the guest runs. It is right if the module is still loaded when a jump is made: otherwise the
/// probe's site has been replaced.
#[derive(Debug)]
pub(crate) struct ModuleText {
    pub(crate) loaded: Loaded,
    pub(crate) targets: BranchTargets,
    /// Functions that run without their CPU's GS base.
    pub(crate) without_gs: HashSet<GuestVirtAddr>,
}

impl Engine {
    /// Reads a module, once it has started.
    ///
    /// # Errors
    /// Why no jump can be in it.
    pub(crate) fn module_text(
        &self,
        memory: &dyn GuestMemory,
        (table, kprobes): (&Table, &GuestKprobes),
        name: &str,
    ) -> Result<ModuleText, NoJump> {
        let unreadable = |reason| NoJump::Unreadable { reason };
        let found = self.find_running(memory, name).map_err(unreadable)?;
        let Some((at, module)) = found else {
            // The module is being loaded or unloaded, and the states of its probes will change with
            // it.
            return Err(NoJump::ModuleStarts);
        };
        // Until then it has init text, which is freed, and the kernel still changes the structures that describe it.
        if module.state != ModuleState::Live || !module.init_text.is_empty() {
            return Err(NoJump::ModuleStarts);
        }
        let loaded = self.read_running(memory, at).map_err(unreadable)?;
        let module = loaded.module();
        if module.is_live_patch {
            // `klp_apply_section_relocs` in kernel/livepatch/core.c
            return Err(NoJump::Module {
                why: "the kernel relocates the text of a live patch when modules are loaded",
            });
        }
        let (start, end) = (module.text.start, module.text.end);
        let len = end.offset_from(start).unwrap_or(0) as usize;
        let text = loaded.body(memory, table, kprobes).text(start, len);
        let text = text.and_then(Result::ok).unwrap_or_default();
        let starts = module.functions.iter().map(|function| function.address);
        let mut targets = BranchTargets::of(start, &text, starts);
        for label in &module.landings.labels {
            targets.insert(*label);
        }
        let function = |at| {
            let (function, _) = module.functions.resolve(at)?;
            Some((function.address, function.size))
        };
        let without_gs = detour::functions_losing_gs(function, start, &text);
        Ok(ModuleText {
            targets,
            without_gs,
            loaded,
        })
    }
}

impl ModuleText {
    /// Where execution goes on according to the module's tables.
    pub(crate) fn landings(&self) -> &Landings {
        &self.loaded.module().landings
    }

    /// Checks that a jump may take the place of these instructions of the module.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(crate) fn admits(
        &self,
        body: &dyn Body,
        site: &Site,
        region: &Region,
    ) -> Result<(), NoJump> {
        // Which of a module's lock prefixes the kernel patches when it goes from one CPU to several isn't looked up
        // (`.smp_locks`): any of them may be one.
        let may_be_patched = |offset: &u8| {
            let offset = usize::from(*offset);
            let bytes = region.bytes.get(offset..).unwrap_or_default();
            let at = region.start.wrapping_add(offset as u64);
            let locks = decode(bytes, at).is_ok_and(|code| code.insn.has_lock_prefix());
            locks || bytes.first() == Some(&UNLOCKED)
        };
        if region.starts.iter().any(may_be_patched) {
            return Err(NoJump::Taken {
                reason: Reason::SmpLock,
            });
        }
        // Jumps are written to physical memory, where one page of a module may be far from the next.
        let last = region.bytes.len().saturating_sub(1) as u64;
        let is_whole = body.phys(site.virt) == Some(site.phys)
            && body.phys(site.virt.wrapping_add(last)) == Some(site.phys.wrapping_add(last));
        match is_whole {
            true => Ok(()),
            false => Err(NoJump::Module {
                why: "what the jump would overwrite lies in two pages",
            }),
        }
    }
}
