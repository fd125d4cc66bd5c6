//! Which exceptions an instruction may raise by itself.

use iced_x86::{
    CodeSize, ConditionCode, CpuidFeature, EncodingKind, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::insn::is_rep_string;

/// An exception's number (SDM vol. 3A, table 6-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Vector {
    DivideError = 0,
    InvalidOpcode = 6,
    DeviceNotAvailable = 7,
    GeneralProtection = 13,
    PageFault = 14,
    FloatingPoint = 16,
    SimdFloatingPoint = 19,
}

/// What can go wrong with an instruction at privilege level 0, decided conservatively: an exception
/// in a copy shows the guest a wrong address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raises {
    /// Nothing: plain integer work on registers.
    Nothing,
    /// Page faults, and #GP or #SS where an address isn't canonical. All of its accesses are among
    /// those that [`crate::emulate::Touched`] foresees.
    PageFaults,
    /// The likeliest ones besides page faults and bad addresses. [`Vector::PageFault`] stands for
    /// page faults that can't be foreseen from the registers alone.
    Others(&'static [Vector]),
}

impl Raises {
    /// The exceptions to look out for while the instruction is executed, the
    /// likeliest first: those known, and then the usual ones.
    pub(crate) fn vectors(self) -> [u8; 4] {
        const USUAL: [Vector; 3] = [
            Vector::GeneralProtection,
            Vector::InvalidOpcode,
            Vector::DivideError,
        ];
        let known = match self {
            Self::Nothing | Self::PageFaults => &[][..],
            Self::Others(known) => known,
        };
        let mut vectors = [Vector::PageFault as u8; 4];
        let mut next = vectors.iter_mut().skip(1);
        let mut seen = vec![Vector::PageFault];
        for vector in known.iter().chain(&USUAL) {
            if !seen.contains(vector)
                && let Some(place) = next.next()
            {
                *place = *vector as u8;
                seen.push(*vector);
            }
        }
        vectors
    }

    /// Returns what `insn` may raise.
    pub(crate) fn by(insn: &Instruction) -> Self {
        if !is_plain(insn) {
            return Self::Others(likeliest(insn));
        }
        // Each round of a repeated instruction may fault, not just the first.
        if is_rep_string(insn) {
            return Self::Others(&[Vector::PageFault]);
        }
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info_options(insn, InstructionInfoOptions::NO_REGISTER_USAGE);
        let mut touched = info
            .used_memory()
            .iter()
            .filter(|used| !matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess))
            .peekable();
        if touched.peek().is_none() {
            Self::Nothing
        } else if touched.all(is_foreseen) {
            Self::PageFaults
        } else {
            Self::Others(&[Vector::PageFault])
        }
    }
}

/// Returns true if the address is one that [`crate::emulate::Touched`] can compute.
fn is_foreseen(used: &UsedMemory) -> bool {
    let (base, index) = (used.base(), used.index());
    used.address_size() == CodeSize::Code64
        && used.vsib_size() == 0
        && (base.is_gpr64() || [Register::None, Register::RIP].contains(&base))
        && (index.is_gpr64() || index == Register::None)
}

/// Returns true if it is an integer instruction that every x86-64 processor has and that depends on
/// no mode: only its memory operand raises exceptions.
fn is_plain(insn: &Instruction) -> bool {
    let registers_only = |i| insn.op_kind(i) != OpKind::Register || insn.op_register(i).is_gpr();
    match insn.mnemonic() {
        // Storing a segment register does no harm; loading one, a control or a debug register may.
        Mnemonic::Mov => {
            registers_only(0) && (registers_only(1) || insn.op1_register().is_segment_register())
        }
        Mnemonic::Push | Mnemonic::Pop => registers_only(0),
        Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Movnti
        | Mnemonic::Lea
        | Mnemonic::Add
        | Mnemonic::Adc
        | Mnemonic::Sub
        | Mnemonic::Sbb
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Cmp
        | Mnemonic::Test
        | Mnemonic::Inc
        | Mnemonic::Dec
        | Mnemonic::Neg
        | Mnemonic::Not
        | Mnemonic::Mul
        | Mnemonic::Imul
        | Mnemonic::Shl
        | Mnemonic::Sal
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Rcl
        | Mnemonic::Rcr
        | Mnemonic::Shld
        | Mnemonic::Shrd
        | Mnemonic::Bt
        | Mnemonic::Bts
        | Mnemonic::Btr
        | Mnemonic::Btc
        | Mnemonic::Bsf
        | Mnemonic::Bsr
        // Older processors take them for `bsf` and `bsr`.
        | Mnemonic::Tzcnt
        | Mnemonic::Lzcnt
        | Mnemonic::Bswap
        | Mnemonic::Xchg
        | Mnemonic::Xadd
        | Mnemonic::Cmpxchg
        | Mnemonic::Cmpxchg8b
        | Mnemonic::Cbw
        | Mnemonic::Cwde
        | Mnemonic::Cdqe
        | Mnemonic::Cwd
        | Mnemonic::Cdq
        | Mnemonic::Cqo
        | Mnemonic::Clc
        | Mnemonic::Stc
        | Mnemonic::Cmc
        | Mnemonic::Cld
        | Mnemonic::Std
        | Mnemonic::Pushfq
        | Mnemonic::Leave
        | Mnemonic::Nop
        | Mnemonic::Pause
        | Mnemonic::Endbr64
        | Mnemonic::Lfence
        | Mnemonic::Mfence
        | Mnemonic::Sfence
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2
        | Mnemonic::Cpuid
        | Mnemonic::Rdtsc => true,
        // Privileged, but at level 0 nothing stops them.
        Mnemonic::In
        | Mnemonic::Out
        | Mnemonic::Clts
        | Mnemonic::Swapgs
        | Mnemonic::Wbinvd
        | Mnemonic::Invlpg => true,
        Mnemonic::Movsb
        | Mnemonic::Movsw
        | Mnemonic::Movsq
        | Mnemonic::Stosb
        | Mnemonic::Stosw
        | Mnemonic::Stosd
        | Mnemonic::Stosq
        | Mnemonic::Lodsb
        | Mnemonic::Lodsw
        | Mnemonic::Lodsd
        | Mnemonic::Lodsq
        | Mnemonic::Scasb
        | Mnemonic::Scasw
        | Mnemonic::Scasd
        | Mnemonic::Scasq
        | Mnemonic::Cmpsb
        | Mnemonic::Cmpsw
        | Mnemonic::Cmpsq => true,
        // SSE has instructions of these names too.
        Mnemonic::Movsd | Mnemonic::Cmpsd => insn.is_string_instruction(),
        _ => is_setcc_or_cmov(insn),
    }
}

fn is_setcc_or_cmov(insn: &Instruction) -> bool {
    insn.condition_code() != ConditionCode::None
        && matches!(
            insn.cpuid_features(),
            [CpuidFeature::INTEL386 | CpuidFeature::CMOV]
        )
}

fn likeliest(insn: &Instruction) -> &'static [Vector] {
    if matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
        return &[Vector::DivideError];
    }
    let has = |wanted: &[CpuidFeature]| {
        insn.cpuid_features()
            .iter()
            .any(|feature| wanted.contains(feature))
    };
    if has(&[
        CpuidFeature::FPU,
        CpuidFeature::FPU287,
        CpuidFeature::FPU387,
        CpuidFeature::MMX,
        CpuidFeature::FXSR,
    ]) {
        return &[Vector::DeviceNotAvailable, Vector::FloatingPoint];
    }
    if insn.encoding() == EncodingKind::Legacy
        && has(&[
            CpuidFeature::SSE,
            CpuidFeature::SSE2,
            CpuidFeature::SSE3,
            CpuidFeature::SSSE3,
            CpuidFeature::SSE4_1,
            CpuidFeature::SSE4_2,
            CpuidFeature::AES,
            CpuidFeature::PCLMULQDQ,
        ])
    {
        // Most of their 16-byte operands have to be aligned.
        return &[
            Vector::DeviceNotAvailable,
            Vector::GeneralProtection,
            Vector::SimdFloatingPoint,
        ];
    }
    if insn.encoding() != EncodingKind::Legacy {
        return &[
            Vector::InvalidOpcode,
            Vector::DeviceNotAvailable,
            Vector::SimdFloatingPoint,
        ];
    }
    if insn.is_privileged() {
        return &[Vector::GeneralProtection, Vector::InvalidOpcode];
    }
    &[Vector::InvalidOpcode, Vector::GeneralProtection]
}
