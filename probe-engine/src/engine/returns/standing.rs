//! Where vCPUs and interrupted tasks stand when return addresses are to be put back: one of them may just have
//! returned to our code, and not executed anything of it.

use guest_kernel::Kernel;
use guest_state::x86_64::NOP5;
use guest_state::x86_64::paging::{PageTables, read_virt};
use guest_state::{GuestMemory, GuestVirtAddr, Registers, StoppedGuest, VcpuId};

use crate::engine::returns::stack::{WORD, read_word};

/// Where Linux has the stacks that the processor switches to by itself, for NMIs and the like
/// (`Documentation/arch/x86/x86_64/mm.rst`: `cpu_entry_area`).
const ENTRY_AREA: std::ops::Range<u64> = 0xffff_fe00_0000_0000..0xffff_fe80_0000_0000;

/// Reads the registers of all vCPUs, by their numbers.
pub(crate) fn vcpus(guest: &dyn StoppedGuest) -> Vec<(VcpuId, Registers)> {
    (0..guest.vcpus())
        .map(VcpuId)
        .filter_map(|vcpu| Some((vcpu, guest.registers(vcpu).ok()?)))
        .collect()
}

/// Returns true if a vCPU is at something that may have interrupted code that holds interrupts back, such as an NMI,
/// or code on whose own stack no frame tells of that. Then it isn't known which tasks stand at the trampoline.
pub(crate) fn any_on_entry_stack(vcpus: &[(VcpuId, Registers)]) -> bool {
    vcpus
        .iter()
        .any(|(_, registers)| ENTRY_AREA.contains(&registers.rsp))
}

/// Bytes of a task's stack (`arch/x86/include/asm/page_64_types.h`, `THREAD_SIZE`).
const STACK_LEN: u64 = 16 << 10;

/// Returns true if a vCPU is running on the stack that has a return address at `at`, in what that call does.
pub(crate) fn any_on_stack_of(vcpus: &[(VcpuId, Registers)], at: u64) -> bool {
    vcpus
        .iter()
        .any(|(_, registers)| at.wrapping_sub(registers.rsp) < STACK_LEN)
}

/// Returns where an interrupt keeps RIP that came when the call with its return address at `at` had just returned to
/// the trampoline. `None` if there was none.
pub(crate) fn interrupted_at(
    memory: &dyn GuestMemory,
    tables: PageTables,
    at: u64,
    trampoline: GuestVirtAddr,
) -> Option<u64> {
    let (frame, rip) = interrupted(memory, tables, at.wrapping_add(WORD))?;
    (rip == trampoline).then_some(frame)
}

/// Returns the frame of an interrupt that came when RSP was `rsp`, and RIP in it. The processor has pushed RIP, CS,
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

/// Opcode of a call to a relative address (SDM vol. 2A, CALL).
const CALL: u8 = 0xe8;

/// Returns true if a tool of the guest's may have read the return address at `at`, and not yet written its own there.
/// When the call returns, the tool will lead it to the address that it has read, whatever is there by then.
///
/// Such a tool runs at the function's entry, with RSP as it is there: `function_graph` and kretprobes that use ftrace
/// are called by the ftrace site (`arch/x86/kernel/ftrace.c`, `ftrace_graph_func`); other kretprobes have RSP in the
/// frame of an int3, or in what an optimized kprobe pushes instead (`arch/x86/kernel/kprobes/opt.c`,
/// `optprobe_template_entry`). What is found may also be left over from an earlier call: then the result is true
/// though no tool runs.
pub(crate) fn may_be_taken(
    memory: &dyn GuestMemory,
    tables: &[PageTables],
    kernel: &Kernel,
    at: u64,
) -> bool {
    tables.iter().any(|tables| {
        let below = |words: u64| read_word(memory, *tables, at.wrapping_sub(words * WORD));
        let is_entry = |rsp: u64| [at, at.wrapping_sub(WORD)].contains(&rsp);
        (1..=3).any(|words| below(words).is_some_and(is_entry))
            || below(1).is_some_and(|back| is_ftrace_call(memory, *tables, kernel, back))
    })
}

/// Returns true if an ftrace site's call returns to `back`. The sites of modules are not looked up: there any call
/// counts as one, and so does the nop that is there while the function isn't traced.
fn is_ftrace_call(
    memory: &dyn GuestMemory,
    tables: PageTables,
    kernel: &Kernel,
    back: u64,
) -> bool {
    let mut code = [0; NOP5.len()];
    let start = GuestVirtAddr(back.wrapping_sub(code.len() as u64));
    if kernel.symbols.is_text(start) {
        let site = kernel.blacklist.ftrace_site(start..GuestVirtAddr(back));
        return site.is_some_and(|site| site.start == start);
    }
    read_virt(memory, tables, start, &mut code).is_ok() && (code == NOP5 || code[0] == CALL)
}

/// Returns true if a vCPU, or a task that was interrupted, stands at one of these places with this
/// RSP.
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
