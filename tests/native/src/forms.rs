//! What distinguishes one form of an instruction from another, and which forms can't be executed
//! here.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

/// Everything about an instruction, except for its constants and for which of several equivalent
/// registers it names.
///
/// Instructions of one form are executed by the same steps. Registers that encodings or
/// instructions treat in a special way (RSP, RAX, AH, those that need REX) are distinguished, and
/// so are operands that are a part of one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Form {
    code: Code,
    prefixes: u16,
    operands: [u8; 5],
    address: u32,
}

/// The form of the instruction that `bytes` begin with, with its length; `None` if there is none.
pub fn form(bytes: &[u8], at: u64) -> Option<(Form, Instruction)> {
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let insn = decoder.decode();
    if insn.is_invalid() {
        return None;
    }
    let bytes = bytes.get(..insn.len())?;
    let mut operands = [0; 5];
    for (index, operand) in (0..insn.op_count()).zip(&mut operands) {
        *operand = operand_class(&insn, index);
    }
    let size = decoder.get_constant_offsets(&insn).displacement_size();
    let form = Form {
        code: insn.code(),
        prefixes: prefixes(bytes),
        operands,
        address: address(&insn, size),
    };
    Some((form, insn))
}

fn operand_class(insn: &Instruction, index: u32) -> u8 {
    match insn.op_kind(index) {
        OpKind::Register => {
            let register = insn.op_register(index);
            let same = (0..index).any(|other| {
                insn.op_kind(other) == OpKind::Register
                    && insn.op_register(other).full_register() == register.full_register()
            });
            0x80 | u8::from(same) << 6 | register_class(register)
        }
        kind => kind as u8,
    }
}

fn register_class(register: Register) -> u8 {
    let general = register.is_gpr();
    match (register, register.full_register()) {
        (Register::None, _) => 0,
        (Register::AH | Register::BH | Register::CH | Register::DH, _) => 1,
        (_, Register::RAX) => 2,
        (_, Register::RSP) => 3,
        (_, Register::RBP) => 4,
        (_, Register::RCX) => 5,
        // Encoded like RSP and RBP.
        (_, Register::R12) => 6,
        (_, Register::R13) => 7,
        (_, full) if general && full.number() >= 8 => 8,
        _ if general => 9,
        (Register::RIP | Register::EIP, _) => 10,
        _ if register.is_segment_register() => 11,
        _ => 12 + u8::from(register.number() >= 8),
    }
}

/// Legacy prefixes, and REX without its register bits.
fn prefixes(bytes: &[u8]) -> u16 {
    let mut found = 0;
    for byte in bytes {
        found |= match byte {
            0x66 => 1,
            0x67 => 2,
            0xf0 => 4,
            0xf2 => 8,
            0xf3 => 16,
            0x26 => 32,
            0x2e => 64,
            0x36 => 128,
            0x3e => 256,
            0x64 => 512,
            0x65 => 1024,
            0x40..=0x47 => return found | 2048,
            0x48..=0x4f => return found | 4096,
            _ => break,
        };
    }
    found
}

fn address(insn: &Instruction, displacement_size: usize) -> u32 {
    if !(0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory) {
        return 0;
    }
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let operand_in_address = (0..insn.op_count()).any(|i| {
        let register = insn.op_register(i).full_register();
        insn.op_kind(i) == OpKind::Register
            && [base.full_register(), index.full_register()].contains(&register)
    });
    let size = match displacement_size {
        0 => 0,
        1 => 1,
        2..=4 => 2,
        _ => 3,
    };
    u32::from(register_class(base))
        | u32::from(register_class(index)) << 4
        | insn.memory_index_scale() << 8
        | size << 12
        | u32::from(base == index) << 14
        | u32::from(operand_in_address) << 15
        | u32::from(base.size() == 4) << 16
}

/// Returns why an instruction can't be executed in a test process, if so. The reasons are, in this
/// order: its privilege, its effect on the process, and that two executions needn't agree.
pub fn unfit(insn: &Instruction) -> Option<&'static str> {
    if insn.is_privileged() {
        return Some(PRIVILEGED);
    }
    if loads_segment(insn) {
        return Some("it loads a segment register");
    }
    match insn.flow_control() {
        FlowControl::XbeginXabortXend => return Some("it is about a transaction"),
        FlowControl::Interrupt if !matches!(insn.mnemonic(), Mnemonic::Int3 | Mnemonic::Int1) => {
            return Some("it is a software interrupt");
        }
        _ => {}
    }
    if insn.is_vsib() {
        return Some("it gathers or scatters");
    }
    match insn.mnemonic() {
        Mnemonic::Clac | Mnemonic::Stac => Some(PRIVILEGED),
        Mnemonic::Syscall
        | Mnemonic::Sysenter
        | Mnemonic::Vmcall
        | Mnemonic::Vmmcall
        | Mnemonic::Vmgexit
        | Mnemonic::Vmfunc
        | Mnemonic::Tdcall
        | Mnemonic::Enclu
        | Mnemonic::Getsec => Some("it is a call into the kernel or the hypervisor"),
        Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Uiret => {
            Some("it is a far return")
        }
        _ if insn.is_call_far()
            || insn.is_call_far_indirect()
            || insn.is_jmp_far()
            || insn.is_jmp_far_indirect() =>
        {
            Some("it is a far branch")
        }
        Mnemonic::Wrfsbase
        | Mnemonic::Wrgsbase
        | Mnemonic::Wrpkru
        | Mnemonic::Xrstor
        | Mnemonic::Xrstor64
        | Mnemonic::Ldtilecfg
        | Mnemonic::Clui
        | Mnemonic::Stui
        | Mnemonic::Senduipi
        | Mnemonic::Umwait
        | Mnemonic::Tpause
        | Mnemonic::Umonitor
        | Mnemonic::Monitorx
        | Mnemonic::Mwaitx => Some("it changes how the process runs"),
        Mnemonic::Clzero
        | Mnemonic::Movdir64b
        | Mnemonic::Enqcmd
        | Mnemonic::Enqcmds
        | Mnemonic::Enter => Some("it writes where no operand says"),
        Mnemonic::Rdtsc
        | Mnemonic::Rdtscp
        | Mnemonic::Rdrand
        | Mnemonic::Rdseed
        | Mnemonic::Rdpmc
        | Mnemonic::Rdpru
        | Mnemonic::Rdpid
        | Mnemonic::Cpuid
        | Mnemonic::Lsl
        | Mnemonic::Sgdt
        | Mnemonic::Sidt
        | Mnemonic::Xgetbv
        | Mnemonic::Xsave
        | Mnemonic::Xsave64
        | Mnemonic::Xsavec
        | Mnemonic::Xsavec64
        | Mnemonic::Xsaveopt
        | Mnemonic::Xsaveopt64 => Some("it may do something else each time"),
        _ => None,
    }
}

/// The reason that names privileged instructions.
pub const PRIVILEGED: &str = "it is privileged";

fn loads_segment(insn: &Instruction) -> bool {
    let writes_first = !matches!(insn.mnemonic(), Mnemonic::Push | Mnemonic::Cmp);
    writes_first && insn.op0_kind() == OpKind::Register && insn.op0_register().is_segment_register()
        || matches!(
            insn.mnemonic(),
            Mnemonic::Lss | Mnemonic::Lfs | Mnemonic::Lgs | Mnemonic::Lds | Mnemonic::Les
        )
}
