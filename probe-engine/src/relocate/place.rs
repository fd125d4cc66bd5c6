//! Instructions that mean something else at another address, or next to another neighbour.

use iced_x86::{CpuidFeature, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::copied::Reason;
use crate::insn::forbidden;

/// Returns why an instruction has to be executed where it is, if so.
pub(super) fn bound(insn: &Instruction) -> Option<Reason> {
    forbidden(insn)
        .or_else(|| branches(insn))
        .or_else(|| keeps_company(insn))
        .or_else(|| records_its_address(insn))
}

/// Returns why an instruction can't be part of a detour, if so. An instruction that must stay next to its neighbour
/// can, as long as the neighbour comes along; so can branches, in another form.
pub(crate) fn bound_in_detour(insn: &Instruction) -> Option<Reason> {
    forbidden(insn)
        .or_else(|| shows_its_address(insn))
        .or_else(|| changes_the_mode(insn))
        .or_else(|| records_its_address(insn))
}

fn branches(insn: &Instruction) -> Option<Reason> {
    match insn.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            Some("it is a relative branch")
        }
        FlowControl::Call | FlowControl::IndirectCall if insn.mnemonic() == Mnemonic::Call => {
            Some("it is a call, which pushes its own address")
        }
        FlowControl::IndirectBranch | FlowControl::Return => {
            Some("it is a branch, after which a copy can't go on")
        }
        _ => shows_its_address(insn),
    }
}

fn shows_its_address(insn: &Instruction) -> Option<Reason> {
    match insn.flow_control() {
        FlowControl::Next
        | FlowControl::ConditionalBranch
        | FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Return => None,
        FlowControl::Call | FlowControl::IndirectCall if insn.mnemonic() == Mnemonic::Call => None,
        FlowControl::Call => Some("it leaves for a hypervisor, which would see the copy's address"),
        _ => Some("it raises an exception, which would show the copy's address"),
    }
}

fn keeps_company(insn: &Instruction) -> Option<Reason> {
    match insn.mnemonic() {
        Mnemonic::Sti | Mnemonic::Stgi => {
            Some("it holds interrupts back for the instruction after it, which a copy hasn't")
        }
        Mnemonic::Cli | Mnemonic::Clgi | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => {
            Some("it changes which interrupts and debug exceptions there are")
        }
        Mnemonic::Hlt => Some("it waits for an interrupt, which would show the copy's address"),
        _ => changes_the_mode(insn),
    }
}

fn changes_the_mode(insn: &Instruction) -> Option<Reason> {
    let loads = |register| insn.op0_kind() == OpKind::Register && insn.op0_register() == register;
    match insn.mnemonic() {
        Mnemonic::Mov
            if [Register::CR0, Register::CR3, Register::CR4]
                .map(loads)
                .contains(&true) =>
        {
            Some("it changes the page tables or their meaning, and new ones may not map the copy")
        }
        Mnemonic::Skinit | Mnemonic::Getsec => Some("it changes the processor's mode"),
        _ => None,
    }
}

/// x87 instructions, but for the control instructions, leave their address in the FPU (SDM vol. 1,
/// 8.1.8).
fn records_its_address(insn: &Instruction) -> Option<Reason> {
    let control = matches!(
        insn.mnemonic(),
        Mnemonic::Fclex
            | Mnemonic::Fnclex
            | Mnemonic::Finit
            | Mnemonic::Fninit
            | Mnemonic::Fldcw
            | Mnemonic::Fstcw
            | Mnemonic::Fnstcw
            | Mnemonic::Fstsw
            | Mnemonic::Fnstsw
            | Mnemonic::Fldenv
            | Mnemonic::Fstenv
            | Mnemonic::Fnstenv
            | Mnemonic::Fsave
            | Mnemonic::Fnsave
            | Mnemonic::Frstor
            | Mnemonic::Wait
    );
    let x87 = insn.cpuid_features().iter().any(|feature| {
        matches!(
            feature,
            CpuidFeature::FPU | CpuidFeature::FPU287 | CpuidFeature::FPU387
        )
    });
    (x87 && !control).then_some("the FPU records its address")
}
