//! The kinds of instructions that matter to a probe.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// The prefixes of an instruction (SDM vol. 2, 2.1.1 and 2.2.1), where the
/// decoded form doesn't tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Prefixes {
    /// 66
    pub(crate) operand_size: bool,
    /// 67
    pub(crate) address_size: bool,
    /// F0
    pub(crate) lock: bool,
    /// F2 or F3, a part of the opcode or not
    pub(crate) repeat: bool,
    /// REX.B
    pub(crate) rex_b: bool,
}

impl Prefixes {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut found = Self::default();
        for byte in bytes {
            // A REX prefix counts only right before the opcode.
            let before = std::mem::take(&mut found.rex_b);
            match byte {
                0x66 => found.operand_size = true,
                0x67 => found.address_size = true,
                0xf0 => found.lock = true,
                0xf2 | 0xf3 => found.repeat = true,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
                0x40..=0x4f => found.rex_b = byte & 1 != 0,
                _ => {
                    found.rex_b = before;
                    break;
                }
            }
        }
        found
    }
}

/// How many of an instruction's bytes are prefixes, REX among them.
pub(crate) fn prefixes_len(bytes: &[u8]) -> usize {
    let is_prefix = |byte: &u8| {
        matches!(
            byte,
            0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x40
                ..=0x4f
        )
    };
    bytes.iter().take_while(|byte| is_prefix(byte)).count()
}

/// Returns true if it is the landing pad of indirect branches, which must stay the first
/// instruction there.
pub(crate) fn is_endbr(insn: &Instruction) -> bool {
    matches!(insn.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32)
}

/// Returns true if the instruction exists to raise an exception, by which the kernel recognizes the
/// place (`BUG`, `WARN`, its own breakpoints).
pub(crate) fn is_trap(insn: &Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Int3 | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2
    )
}

/// Returns true if execution never reaches the following instruction from this one.
pub(crate) fn never_falls_through(insn: &Instruction) -> bool {
    matches!(
        insn.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// Returns true if it is a call that leads over the one byte behind it. An int3 there is the kernel's own: only
/// speculation comes to it (`arch/x86/include/asm/nospec-branch.h`, `arch/x86/kernel/ftrace_64.S`).
pub(crate) fn calls_over_a_byte(insn: &Instruction) -> bool {
    insn.is_call_near() && insn.near_branch64() == insn.next_ip().wrapping_add(1)
}

/// Returns true if it is a string instruction under a repeat prefix: it is interruptible between
/// two rounds, with RIP still at it.
pub(crate) fn is_rep_string(insn: &Instruction) -> bool {
    insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix())
}

/// Returns why no probe can go on this instruction, if none can: it can be neither emulated nor
/// stepped with the right result.
pub(crate) fn forbidden(insn: &Instruction) -> Option<&'static str> {
    let loads_ss = insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::SS;
    match insn.mnemonic() {
        Mnemonic::Mov | Mnemonic::Pop if loads_ss => {
            Some("it blocks interrupts and debug exceptions for one more instruction")
        }
        Mnemonic::Lss => Some("it loads the stack segment"),
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => {
            Some("it leaves the kernel with a new set of flags")
        }
        Mnemonic::Sysret
        | Mnemonic::Sysretq
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq
        | Mnemonic::Syscall
        | Mnemonic::Sysenter
        | Mnemonic::Uiret
        | Mnemonic::Eretu
        | Mnemonic::Erets
        | Mnemonic::Rsm => Some("it changes the privilege level or the processor's mode"),
        Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Into => Some("it is a software interrupt"),
        Mnemonic::Xbegin | Mnemonic::Xabort | Mnemonic::Xend => {
            Some("it begins or ends a transaction, which a probe always aborts")
        }
        Mnemonic::Enter => Some("it is a rarely used form that is not supported yet"),
        Mnemonic::Vmrun
        | Mnemonic::Vmlaunch
        | Mnemonic::Vmresume
        | Mnemonic::Vmcall
        | Mnemonic::Vmmcall => Some("it leaves for or comes from another virtual machine"),
        _ if is_far(insn) => Some("it is a far branch, which changes the code segment"),
        _ => None,
    }
}

/// Returns true if it is a branch that loads CS.
fn is_far(insn: &Instruction) -> bool {
    let memory = insn.is_call_far_indirect() || insn.is_jmp_far_indirect();
    let immediate = insn.is_call_far() || insn.is_jmp_far();
    memory || immediate || insn.mnemonic() == Mnemonic::Retf
}
