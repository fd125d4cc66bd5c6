//! Text as a decoder sees it that the product doesn't use.

use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::amd64::{InstDecoder, Instruction, Opcode, Operand, RegSpec};

use crate::test::{Failure, wrong};

/// `int3` (Intel SDM vol. 2).
pub const INT3: u8 = 0xcc;

/// Instructions that the kernels have and the decoder doesn't know (Intel SDM vol. 2), and nops that are decoded in
/// their place: they have the same length, and are ordinary instructions too.
const UNKNOWN: [(&[u8], &[u8]); 3] = [
    // serialize, in `sync_core`
    (&[0x0f, 0x01, 0xe8], &[0x0f, 0x1f, 0x00]),
    // lkgs %edi, in `native_lkgs`
    (&[0xf2, 0x0f, 0x00, 0xf7], &[0x0f, 0x1f, 0x40, 0x00]),
    // tilerelease, in `fpu_idle_fpregs`
    (
        &[0xc4, 0xe2, 0x78, 0x49, 0xc0],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    ),
];

/// An instruction, by offsets from where decoding began.
#[derive(Debug)]
pub struct Code {
    /// Where it begins.
    pub start: usize,
    /// Where the next one begins.
    pub end: usize,
    instruction: Instruction,
}

/// The instructions that begin in the first `size` bytes, one after the other. The bytes go on behind
/// them, so that the last is whole.
///
/// # Errors
/// If there is none at some place.
pub fn decode(bytes: &[u8], size: usize) -> Result<Vec<Code>, Failure> {
    let decoder = InstDecoder::default();
    let mut found = Vec::new();
    let mut start = 0;
    while start < size {
        let rest = &bytes[start..];
        let unknown = UNKNOWN.iter().find(|(bytes, _)| rest.starts_with(bytes));
        let known = unknown.map_or(rest, |(_, nop)| nop);
        let instruction = decoder.decode_slice(known).map_err(|error| {
            let shown = &bytes[start..bytes.len().min(start + 15)];
            wrong!("no instruction at +{start:#x}: {shown:02x?} ({error:?})")
        })?;
        let end = start + instruction.len().to_const() as usize;
        found.push(Code {
            start,
            end,
            instruction,
        });
        start = end;
    }
    Ok(found)
}

/// Returns the instruction that an offset is in.
pub fn at(code: &[Code], offset: usize) -> Option<&Code> {
    let before = code.partition_point(|one| one.start <= offset);
    code[..before].last().filter(|one| offset < one.end)
}

impl Code {
    /// Returns true if it always raises an exception.
    pub fn is_trap(&self) -> bool {
        let opcode = self.instruction.opcode();
        let int3 = opcode == Opcode::INT && self.end - self.start == 1;
        int3 || matches!(opcode, Opcode::UD0 | Opcode::UD1 | Opcode::UD2)
    }

    /// Returns true if its target is a word in memory.
    pub fn is_memory_branch(&self) -> bool {
        let is_branch = matches!(self.instruction.opcode(), Opcode::CALL | Opcode::JMP);
        is_branch && self.instruction.operand(0).is_memory()
    }

    /// Returns true if docs/probes.md names it among those that can't be executed under a probe.
    pub fn is_unsupported(&self) -> bool {
        let to_ss = || self.instruction.operand(0) == Operand::Register { reg: RegSpec::ss() };
        match self.instruction.opcode() {
            Opcode::MOV | Opcode::POP => to_ss(),
            Opcode::INT => self.end - self.start == 2,
            opcode => matches!(
                opcode,
                Opcode::IRET
                    | Opcode::IRETD
                    | Opcode::IRETQ
                    | Opcode::SYSRET
                    | Opcode::SYSEXIT
                    | Opcode::SYSCALL
                    | Opcode::SYSENTER
                    | Opcode::CALLF
                    | Opcode::JMPF
                    | Opcode::RETF
                    | Opcode::LSS
                    | Opcode::XBEGIN
                    | Opcode::XEND
                    | Opcode::XABORT
                    | Opcode::ENTER
                    | Opcode::VMRUN
                    | Opcode::VMCALL
                    | Opcode::VMMCALL
                    | Opcode::VMLAUNCH
                    | Opcode::VMRESUME
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_found_with_those_that_are_no_place_for_a_probe() {
        let bytes = [
            0xf3, 0x0f, 0x1e, 0xfa, // endbr64
            0x0f, 0x1f, 0x44, 0x00, 0x00, // nopl
            0x8e, 0xd0, // mov %eax, %ss
            0x8e, 0xd8, // mov %eax, %ds
            0x0f, 0x0b, // ud2
            0x48, 0xcf, // iretq
            0xcd, 0x80, // int $0x80
            0xcc, // int3
            0x2e, 0xe8, 0, 0, 0, 0, // cs call
            0xff, 0xd0, // call *%rax
            0xff, 0x20, // jmp *(%rax)
            0x0f, 0x01, 0xe8, // serialize
            0xf2, 0x0f, 0x00, 0xf7, // lkgs %edi
            0xc4, 0xe2, 0x78, 0x49, 0xc0, // tilerelease
            0x90, // nop
        ];
        let code = decode(&bytes, bytes.len()).unwrap();
        let starts: Vec<usize> = code.iter().map(|one| one.start).collect();
        let expected = [0, 4, 9, 11, 13, 15, 17, 19, 20, 26, 28, 30, 33, 37, 42];
        assert_eq!(starts, expected);
        let traps = code.iter().filter(|one| one.is_trap());
        assert_eq!(traps.map(|one| one.start).collect::<Vec<_>>(), [13, 19]);
        let unsupported = code.iter().filter(|one| one.is_unsupported());
        let unsupported: Vec<usize> = unsupported.map(|one| one.start).collect();
        assert_eq!(unsupported, [9, 15, 17]);
        let memory = code.iter().filter(|one| one.is_memory_branch());
        assert_eq!(memory.map(|one| one.start).collect::<Vec<_>>(), [28]);
        assert_eq!(at(&code, 8).map(|one| one.start), Some(4));
        assert!(at(&code, bytes.len()).is_none());
        assert!(decode(&[0x06], 1).is_err());
    }
}
