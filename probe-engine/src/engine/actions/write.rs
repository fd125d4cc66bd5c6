//! Writing guest memory on a user's behalf.

use guest_state::x86_64::MAX_INSTRUCTION_LEN;
use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::paging::{PageTables, VirtFault, walk, write_virt};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use crate::action::ActionFailure;
use crate::engine::Engine;
use crate::engine::code::arena::CodeArena;
use crate::engine::sites::table::Table;

/// The longest jump of ours, with what it overwrites.
const REACH: u64 = 2 * MAX_INSTRUCTION_LEN as u64;

/// Writes bytes where the guest's kernel could, but not over what is ours.
///
/// The table must stay the present one. So either this is called in a vCPU's trap, during which no change of probes is
/// made, or the caller keeps changes out.
pub(crate) fn write(
    table: &Table,
    memory: &dyn GuestMemory,
    tables: PageTables,
    at: GuestVirtAddr,
    bytes: &[u8],
) -> Result<(), ActionFailure> {
    let mut done = 0;
    while done < bytes.len() {
        let here = at.wrapping_add(done as u64);
        let len = (PAGE_SIZE - here.0 % PAGE_SIZE).min((bytes.len() - done) as u64);
        let page = walk(memory, tables, here).map_err(|cause| VirtFault {
            at: here,
            done: 0,
            cause: cause.into(),
        })?;
        if CodeArena::covers(here) || is_planted(table, page.phys, len) {
            return Err(ActionFailure::Ours { at: here });
        }
        done += len as usize;
    }
    Ok(write_virt(memory, tables, at, bytes)?)
}

/// Returns true if an int3 or a jump of ours is in these bytes, or may be for a probe that is registered.
fn is_planted(table: &Table, at: GuestPhysAddr, len: u64) -> bool {
    let start = at.0.saturating_sub(REACH);
    (start..at.0.saturating_add(len)).any(|phys| {
        let site = table.site_at_phys(GuestPhysAddr(phys));
        site.is_some_and(|site| {
            let len = site.jump().map_or(usize::from(site.len), |jump| jump.len());
            phys + len as u64 > at.0
        })
    })
}

impl Engine {
    /// Writes guest memory by these page tables while the guest runs, or stands still: where its kernel could, but
    /// not over what is ours there.
    ///
    /// # Errors
    /// Nothing is written where a part of it can't be.
    pub fn write_memory(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        at: GuestVirtAddr,
        bytes: &[u8],
    ) -> Result<(), ActionFailure> {
        let _no_change_of_probes = self.registry.lock();
        write(&self.table(), memory, tables, at, bytes)
    }
}
