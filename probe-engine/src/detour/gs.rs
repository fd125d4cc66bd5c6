//! Functions that run while GS base isn't that of their CPU's variables.
//!
//! A detour finds the vCPU's block by GS. Nearly all of the kernel runs with GS base in place; but loading the segment
//! register clears the base (SDM vol. 3A, 3.4.4), and until the base is written anew, the functions that are called run
//! without it. Linux does so when a CPU gets its descriptor table (`load_percpu_segment`, `switch_gdt_and_percpu_base`
//! in `arch/x86/kernel/cpu/common.c`), when it wakes up (`arch/x86/kernel/acpi/wakeup_64.S`) and in kexec
//! (`machine_kexec`, `arch/x86/kernel/machine_kexec_64.c`). These functions are found by their code, as compilers make
//! other functions of it in each kernel.

use std::collections::HashSet;

use guest_kernel::symbols::Symbols;
use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::ground::EARLY;

/// Returns the functions in `text`, which lies at `start`, that can't find their vCPU's block, by their addresses:
/// those that change GS base or begin without it, and those that they call then.
pub fn functions_without(
    symbols: &Symbols,
    start: GuestVirtAddr,
    text: &[u8],
) -> HashSet<GuestVirtAddr> {
    let early = EARLY.iter().flat_map(|name| symbols.by_name(name));
    let early: HashSet<_> = early.map(|symbol| symbol.address).collect();
    let resolve = |at| {
        let within = symbols.resolve(at)?;
        Some((within.symbol.address, within.size))
    };
    all_without(resolve, &early, start, text)
}

/// Does the same for a module, none of whose functions begins without GS base: it finds those that change GS base, and
/// those of the module that they call then. `resolve` tells the start and the size of the function that an address is
/// in.
pub fn functions_losing_gs(
    resolve: impl Fn(GuestVirtAddr) -> Option<(GuestVirtAddr, u64)>,
    start: GuestVirtAddr,
    text: &[u8],
) -> HashSet<GuestVirtAddr> {
    all_without(resolve, &HashSet::new(), start, text)
}

fn all_without(
    resolve: impl Fn(GuestVirtAddr) -> Option<(GuestVirtAddr, u64)>,
    early: &HashSet<GuestVirtAddr>,
    start: GuestVirtAddr,
    text: &[u8],
) -> HashSet<GuestVirtAddr> {
    let changing = suspects(text).map(|offset| start.wrapping_add(offset as u64));
    let mut without = HashSet::new();
    for at in changing.chain(early.iter().copied()) {
        let Some((function, size)) = resolve(at) else {
            continue;
        };
        if without.contains(&function) {
            continue;
        }
        let bytes = function.offset_from(start).and_then(|from| {
            let rest = text.get(usize::try_from(from).ok()?..)?;
            Some(&rest[..rest.len().min(size as usize)])
        });
        let bytes = bytes.unwrap_or_default();
        if let Some(called) = called_without(bytes, function, early.contains(&function)) {
            without.insert(function);
            let called = called.into_iter().filter_map(&resolve);
            without.extend(called.map(|(function, _)| function));
        }
    }
    without
}

/// Returns the offsets in `text` at which an instruction may begin or go on that changes GS base: few enough to be
/// looked at one by one with [`called_without`].
fn suspects(text: &[u8]) -> impl Iterator<Item = usize> {
    let is_suspect = |bytes: &[u8]| match *bytes {
        // mov to a segment register; its number is in the ModR/M byte (SDM vol. 2, MOV)
        [0x8e, modrm, ..] => modrm >> 3 & 7 == 5,
        // lgs; swapgs; wrgsbase with a register
        [0x0f, 0xb5, ..] | [0x0f, 0x01, 0xf8] => true,
        [0x0f, 0xae, modrm] => modrm >> 3 == 0b11_011,
        _ => false,
    };
    let windows = text.windows(3).enumerate();
    windows
        .filter(move |(_, bytes)| is_suspect(bytes))
        .map(|(offset, _)| offset)
}

/// Returns the targets of the direct calls and jumps that a function does without the CPU's GS base; `None` if it never
/// is without. `early` says that it begins without.
///
/// The function is read in a straight line, from the change of GS base to the first instruction that uses it again.
/// Where that isn't the order of execution, one target more or less may be found: each `call` behind a `mov` to GS in
/// the kernels that this was tried with is one that runs so.
fn called_without(text: &[u8], start: GuestVirtAddr, early: bool) -> Option<Vec<GuestVirtAddr>> {
    let mut decoder = Decoder::with_ip(64, text, start.0, DecoderOptions::NO_INVALID_CHECK);
    let mut insn = Instruction::default();
    let (mut without, mut ever) = (early, early);
    let mut called = Vec::new();
    while decoder.can_decode() {
        decoder.decode_out(&mut insn);
        if loads_gs(&insn) {
            (without, ever) = (true, true);
        } else if uses_gs(&insn) {
            without = false;
        }
        let leaves = matches!(
            insn.flow_control(),
            FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
        );
        if without && leaves && insn.op0_kind() == OpKind::NearBranch64 {
            called.push(GuestVirtAddr(insn.near_branch64()));
        }
    }
    let end = start.wrapping_add(text.len() as u64);
    called.retain(|at| !(start..end).contains(at));
    ever.then_some(called)
}

fn loads_gs(insn: &Instruction) -> bool {
    let to_gs = insn.mnemonic() == Mnemonic::Mov
        && insn.op0_kind() == OpKind::Register
        && insn.op0_register() == Register::GS;
    to_gs
        || matches!(
            insn.mnemonic(),
            Mnemonic::Lgs | Mnemonic::Swapgs | Mnemonic::Wrgsbase
        )
}

fn uses_gs(insn: &Instruction) -> bool {
    let in_memory = (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory);
    in_memory && insn.memory_segment() == Register::GS
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: GuestVirtAddr = GuestVirtAddr(0x1000);

    fn at(offset: u64) -> GuestVirtAddr {
        START.wrapping_add(offset)
    }

    #[test]
    fn functions_called_while_gs_is_loaded_run_without_it() {
        // call +0x105; xor %eax,%eax; mov %eax,%gs; je . + 2; call +0x210;
        // mov %gs:0x28,%rax; jmp +0x300
        let mut text = vec![0xe8, 0, 1, 0, 0, 0x31, 0xc0, 0x8e, 0xe8, 0x74, 0];
        text.extend([0xe8, 0, 2, 0, 0]);
        text.extend([0x65, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0]);
        text.extend([0xe9, 0, 3, 0, 0]);
        assert_eq!(called_without(&text, START, false), Some(vec![at(0x210)]));
        let early = called_without(&text, START, true);
        assert_eq!(early, Some(vec![at(0x105), at(0x210)]));
        assert_eq!(suspects(&text).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_function_that_leaves_gs_alone_is_none() {
        // mov %eax,%fs; mov %gs,%eax; mov %gs:0,%rax; ret
        let text = [
            0x8e, 0xe0, 0x8c, 0xe8, 0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0xc3,
        ];
        assert_eq!(called_without(&text, START, false), None);
        assert_eq!(suspects(&text).count(), 0);
    }

    #[test]
    fn every_way_to_change_gs_base_is_a_suspect() {
        for text in [
            &[0x8e, 0x28, 0x90][..],
            &[0x0f, 0x01, 0xf8],
            &[0xf3, 0x48, 0x0f, 0xae, 0xd8],
            &[0x48, 0x0f, 0xb5, 0x00],
        ] {
            assert_eq!(suspects(text).count(), 1, "{text:x?}");
            assert_eq!(
                called_without(text, START, false),
                Some(vec![]),
                "{text:x?}"
            );
        }
    }
}
