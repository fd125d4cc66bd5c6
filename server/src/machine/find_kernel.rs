//! Finding a kernel that unpacked itself.

use guest_state::x86_64::paging;
use guest_state::{GuestPhysAddr, GuestVirtAddr, StoppedGuest, VcpuId};
use tonic::Status;
use vmm::StoppedVm;

use super::Machine;
use super::create::linked_image;
use super::inspect::page_tables;
use crate::status;

impl Machine {
    /// Finds where a kernel that unpacked itself is, once it has set itself up.
    pub(super) fn find_kernel(&self, stopped: &StoppedVm<'_>) -> Result<(), Status> {
        if self.engine.has_image_map() {
            return Ok(());
        }
        let entry = stopped.syscall_entry(VcpuId(0));
        let entry = entry.map_err(|error| status::vcpu(&error))?;
        if entry == GuestVirtAddr(0) {
            // The engine says that the place of the text isn't known yet.
            return Ok(());
        }
        let linked = self
            .engine
            .symbols()
            .find("entry_SYSCALL_64")
            .map_err(|error| Status::failed_precondition(error.to_string()))?
            .address;
        let image = linked_image(&self.vm);
        // KASLR chooses the virtual and the physical place each for itself.
        let slide = entry.0.wrapping_sub(linked.0);
        let place = walk(stopped, entry)?;
        let in_place = slide == 0 && image.to_phys(linked).map(|(phys, _)| phys) == Some(place);
        if !in_place {
            return Err(Status::failed_precondition(format!(
                "the kernel of VM `{}` has moved itself by {slide:#x}, to physical {place} (KASLR), \
                 and probing a moved kernel is not supported: boot it without `kaslr` on the \
                 command line",
                self.name
            )));
        }
        let started = self.engine.has_started(stopped.memory(), &image);
        let started = started.map_err(|error| Status::internal(error.to_string()))?;
        let Some(started) = started else {
            return Err(Status::failed_precondition(format!(
                "whether the kernel of VM `{}` still patches its own text can't be told, as it has no symbol \
                 `system_state`: boot it as an ELF (`--boot elf`)",
                self.name
            )));
        };
        self.engine.set_image_map(image, started);
        self.install_arena(stopped);
        if !started {
            let armed = self.engine.arm_milestones(stopped);
            armed.map_err(|error| status::register(&error.into(), &[]))?;
        }
        Ok(())
    }
}

/// Where the first vCPU finds a virtual address in guest memory.
fn walk(stopped: &StoppedVm<'_>, at: GuestVirtAddr) -> Result<GuestPhysAddr, Status> {
    let tables = page_tables(stopped, VcpuId(0))?;
    let found = paging::walk(stopped.memory(), tables, at);
    let found = found.map_err(|error| Status::failed_precondition(error.to_string()))?;
    Ok(found.phys)
}
