//! Where vCPUs stand, and tasks that were interrupted, when return addresses are to be put back: one may just
//! have returned to our code, and not executed anything of it.

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Registers, StoppedGuest, VcpuId};

use crate::engine::returns::stack::{WORD, read_word};

/// Where Linux has the stacks that the processor switches to by itself, for NMIs and the like
/// (`Documentation/arch/x86/x86_64/mm.rst`: `cpu_entry_area`).
const ENTRY_AREA: std::ops::Range<u64> = 0xffff_fe00_0000_0000..0xffff_fe80_0000_0000;

/// The registers of all vCPUs, by their numbers.
pub(crate) fn vcpus(guest: &dyn StoppedGuest) -> Vec<(VcpuId, Registers)> {
    (0..guest.vcpus())
        .map(VcpuId)
        .filter_map(|vcpu| Some((vcpu, guest.registers(vcpu).ok()?)))
        .collect()
}

/// Whether a vCPU is at what may have interrupted code that holds interrupts back, such as an NMI, or code
/// that no frame on its own stack tells of: nobody knows then who stands at the trampoline.
pub(crate) fn any_on_entry_stack(vcpus: &[(VcpuId, Registers)]) -> bool {
    vcpus
        .iter()
        .any(|(_, registers)| ENTRY_AREA.contains(&registers.rsp))
}

/// Where the interrupt keeps RIP that came when the call with its return address at `at` had just returned
/// to the trampoline. `None` if there was none.
pub(crate) fn interrupted_at(
    memory: &dyn GuestMemory,
    tables: PageTables,
    at: u64,
    trampoline: GuestVirtAddr,
) -> Option<u64> {
    let (frame, rip) = interrupted(memory, tables, at.wrapping_add(WORD))?;
    (rip == trampoline).then_some(frame)
}

/// The frame of an interrupt that came when RSP was this, and RIP in it: the processor has pushed RIP, CS,
/// RFLAGS, RSP and SS below, on a stack aligned to 16 bytes (SDM vol. 3A, 6.14.2).
fn interrupted(
    memory: &dyn GuestMemory,
    tables: PageTables,
    rsp: u64,
) -> Option<(u64, GuestVirtAddr)> {
    let frame = (rsp & !15).wrapping_sub(5 * WORD);
    let word = |at| read_word(memory, tables, at);
    let is_one = word(frame.wrapping_add(3 * WORD)) == Some(rsp);
    let rip = word(frame).filter(|_| is_one)?;
    Some((frame, GuestVirtAddr(rip)))
}

/// Whether a vCPU, or a task that was interrupted, stands at one of these places with this RSP.
pub(crate) fn stands_at(
    memory: &dyn GuestMemory,
    tables: &[PageTables],
    vcpus: &[(VcpuId, Registers)],
    rsp: u64,
    places: &[GuestVirtAddr],
) -> bool {
    let is_place = |rip| places.contains(&rip);
    let stands = |it: &Registers| it.rsp == rsp && is_place(GuestVirtAddr(it.rip));
    let interrupted = |tables: &PageTables| {
        let frame = interrupted(memory, *tables, rsp);
        frame.is_some_and(|(_, rip)| is_place(rip))
    };
    vcpus.iter().any(|(_, registers)| stands(registers)) || tables.iter().any(interrupted)
}
