//! Finds out whose int3 a vCPU has come to.

use std::sync::Arc;

use guest_state::x86_64::INT3;
use guest_state::x86_64::flags::RF;
use guest_state::x86_64::paging::walk;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, Vcpu};

use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;

/// What is at a trap's address.
pub(crate) enum Found<'t> {
    Ours(&'t Arc<Site>),
    /// No probe, and no int3 any more: the breakpoint was removed since the trap.
    Stale,
    /// The guest's own int3.
    Foreign,
}

/// Finds the site at RIP. Early boot code runs identity-mapped, so where no site has this virtual
/// address, the physical one is looked for as well.
pub(crate) fn find<'t>(
    table: &'t Table,
    memory: &dyn GuestMemory,
    vcpu: &mut dyn Vcpu,
) -> Found<'t> {
    let rip = GuestVirtAddr(vcpu.registers().rip);
    // Where the guest holds a jump, no int3 is ours.
    let is_ours = |site: &&Arc<Site>| site.has_int3() && table.held(site.virt).is_none();
    // User mode can't execute at an address of the kernel.
    let site = table.site(rip);
    if let Some(site) = site.filter(is_ours) {
        return Found::Ours(site);
    }
    let known = match site {
        Some(site) => Some(site.phys),
        None => table.image.to_phys(rip).map(|(phys, _)| phys),
    };
    let Some(phys) = known.or_else(|| translate(memory, vcpu, rip)) else {
        return Found::Foreign;
    };
    if let Some(site) = table.site_at_phys(phys).filter(is_ours) {
        return Found::Ours(site);
    }
    if is_gone(memory, phys) {
        Found::Stale
    } else {
        Found::Foreign
    }
}

/// Returns true if there is no int3 any more.
pub(crate) fn is_gone(memory: &dyn GuestMemory, phys: GuestPhysAddr) -> bool {
    let mut byte = [0];
    memory.read(phys, &mut byte).is_ok() && byte != [INT3]
}

/// Returns the physical address of 64-bit supervisor code; `None` for any other code.
fn translate(
    memory: &dyn GuestMemory,
    vcpu: &mut dyn Vcpu,
    at: GuestVirtAddr,
) -> Option<GuestPhysAddr> {
    let control = vcpu
        .control()
        .ok()
        .filter(|control| control.cpl == 0 && control.code64)?;
    let tables = control.page_tables().ok()?;
    walk(memory, tables, at).ok().map(|page| page.phys)
}

/// Clears RF. A processor that has left the guest to have the page of the int3 mapped sets RF, so it isn't the guest
/// that has set it. Without a probe, RF ends with the instruction (SDM vol. 3B, 18.3.1.1, and vol. 3C, 28.3.3).
pub(crate) fn end_resume(vcpu: &mut dyn Vcpu) {
    if vcpu.registers().rflags & RF != 0 {
        vcpu.registers_mut().rflags &= !RF;
    }
}
