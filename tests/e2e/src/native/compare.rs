//! Comparing many cases.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use iced_x86::{Formatter, GasFormatter, Instruction, Mnemonic, OpKind, Register};
use probe_engine::addr::GuestPhysAddr;
use probe_engine::emulate::{self, Outcome};
use probe_engine::guest::{GuestMemory, MemoryError};
use probe_engine::vcpu::Registers;
use probe_engine::vcpu::testing::TestVcpu;

use super::case::Case;
use super::cpu::Cpu;
use super::random::Random;

const CF: u64 = 1 << 0;
const AF: u64 = 1 << 4;
const OF: u64 = 1 << 11;

/// What was compared.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Cases compared.
    pub cases: usize,
    /// How many of each mnemonic.
    pub mnemonics: BTreeMap<String, usize>,
    /// Cases in which a flag that the manual leaves undefined differed.
    pub undefined_flags_differ: usize,
}

/// Why the comparison didn't succeed.
#[derive(Debug, Clone)]
pub enum Mismatch {
    /// The emulation and the CPU disagree.
    Result {
        /// The instruction.
        instruction: String,
        /// Its bytes.
        code: Vec<u8>,
        /// What it started from, what the CPU made of it, what the engine did.
        registers: Box<[Registers; 3]>,
        /// Bytes of memory that differ.
        memory: usize,
    },
    /// The engine wouldn't do it.
    NotEmulated {
        /// The instruction.
        instruction: String,
        /// What it said instead.
        outcome: String,
    },
    /// The system doesn't let code be executed.
    System(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result {
                instruction,
                code,
                registers,
                memory,
            } => write!(
                f,
                "`{instruction}` ({code:02x?}): {memory} bytes of memory differ\nbefore {:x?}\n\
                 cpu    {:x?}\nengine {:x?}",
                registers[0], registers[1], registers[2]
            ),
            Self::NotEmulated {
                instruction,
                outcome,
            } => {
                write!(f, "`{instruction}` is not emulated: {outcome}")
            }
            Self::System(reason) => write!(f, "cannot execute code here: {reason}"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Executes `cases` random instructions both ways.
///
/// # Errors
/// The first case in which they differ.
pub fn emulation_equals_the_cpu(cases: usize, seed: u64) -> Result<Report, Mismatch> {
    let system = |error: std::io::Error| Mismatch::System(error.to_string());
    let mut cpu = Cpu::new().map_err(system)?;
    let mut random = Random::new(seed);
    let mut report = Report::default();
    while report.cases < cases {
        let Some(case) = Case::draw(&mut random, cpu.layout()) else {
            continue;
        };
        let memory = Copy {
            base: cpu.layout().data,
            bytes: Mutex::new(case.data.clone()),
        };
        let mut vcpu = TestVcpu {
            registers: case.registers,
            ..TestVcpu::default()
        };
        let outcome = emulate::once(&case.code, &memory, &mut vcpu);
        if outcome != Some(Outcome::Done) {
            if is_left_out(&case.insn) {
                continue;
            }
            let (instruction, outcome) = (text(&case.insn), format!("{outcome:?}"));
            return Err(Mismatch::NotEmulated {
                instruction,
                outcome,
            });
        }
        let (on_cpu, data) = cpu.execute(&case).map_err(system)?;
        let ours = memory.into_bytes();
        let undefined = undefined_flags(&case);
        let mut difference = vcpu.registers.rflags ^ on_cpu.rflags;
        if difference & undefined != 0 {
            report.undefined_flags_differ += 1;
        }
        difference &= !undefined;
        let same = Registers {
            rflags: 0,
            ..vcpu.registers
        } == Registers {
            rflags: 0,
            ..on_cpu
        };
        let memory = ours.iter().zip(&data).filter(|(a, b)| a != b).count();
        if difference != 0 || !same || memory != 0 {
            return Err(Mismatch::Result {
                instruction: text(&case.insn),
                code: case.code,
                registers: Box::new([case.registers, on_cpu, vcpu.registers]),
                memory,
            });
        }
        report.cases += 1;
        *report
            .mnemonics
            .entry(format!("{:?}", case.insn.mnemonic()))
            .or_default() += 1;
    }
    Ok(report)
}

/// Forms that the draw makes and the engine leaves to the CPU.
fn is_left_out(insn: &Instruction) -> bool {
    // 16-bit stack operations.
    matches!(
        insn.mnemonic(),
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushf | Mnemonic::Leave | Mnemonic::Popf
    )
}

/// The flags that the manual leaves undefined after a case (SDM vol. 2).
fn undefined_flags(case: &Case) -> u64 {
    let insn = &case.insn;
    match insn.mnemonic() {
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => AF,
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => {
            let bits = 8 * match insn.op0_kind() {
                OpKind::Register => insn.op0_register().size(),
                _ => insn.memory_size().size(),
            } as u64;
            let count = match insn.op1_register() {
                Register::CL => case.registers.rcx & 0xff,
                _ => u64::from(insn.immediate8()),
            };
            let count = count & if bits == 64 { 63 } else { 31 };
            match count {
                0 => 0,
                1 => AF,
                count if count >= bits && insn.mnemonic() != Mnemonic::Sar => AF | OF | CF,
                _ => AF | OF,
            }
        }
        _ => 0,
    }
}

fn text(insn: &Instruction) -> String {
    let mut text = String::new();
    GasFormatter::new().format(insn, &mut text);
    text
}

/// The engine's copy of the data, at the same addresses.
struct Copy {
    base: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Copy {
    fn into_bytes(self) -> Vec<u8> {
        self.bytes
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn with(
        &self,
        at: GuestPhysAddr,
        len: usize,
        access: impl FnOnce(&mut [u8]),
    ) -> Result<(), MemoryError> {
        let mut bytes = self
            .bytes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        at.0.checked_sub(self.base)
            .and_then(|start| usize::try_from(start).ok())
            .and_then(|start| bytes.get_mut(start..start.checked_add(len)?))
            .map(access)
            .ok_or(MemoryError { at, len })
    }
}

impl GuestMemory for Copy {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        self.with(at, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.with(at, from.len(), |bytes| bytes.copy_from_slice(from))
    }
}
