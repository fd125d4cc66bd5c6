//! Whose the int3 is that a vCPU has come to.

use std::sync::Arc;

use guest_state::x86_64::INT3;
use guest_state::x86_64::paging::walk;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, Vcpu};

use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;

/// What a trap's address turned out to be.
pub(crate) enum Found<'t> {
    Ours(&'t Arc<Site>),
    /// No probe there, and no int3 any more: it was removed since the trap.
    Stale,
    /// The guest's.
    Foreign,
}

/// The site at RIP. Early boot code runs identity-mapped, so an address that is
/// no site is looked for in physical memory as well.
pub(crate) fn find<'t>(
    table: &'t Table,
    memory: &dyn GuestMemory,
    vcpu: &mut dyn Vcpu,
) -> Found<'t> {
    let rip = GuestVirtAddr(vcpu.registers().rip);
    // Where the guest holds a jump, no int3 is ours.
    let is_ours = |site: &&Arc<Site>| site.has_int3() && table.held(site.virt).is_none();
    // User mode can't execute at an address of the kernel.
    let site = table.hit_site(rip);
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

/// Whether there is no int3 any more.
pub(crate) fn is_gone(memory: &dyn GuestMemory, phys: GuestPhysAddr) -> bool {
    let mut byte = [0];
    memory.read(phys, &mut byte).is_ok() && byte != [INT3]
}

/// Where an address of 64-bit supervisor code is; `None` for any other code.
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
