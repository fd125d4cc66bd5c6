//! Emulation and relocation of an instruction, compared with the CPU.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use guest_state::testing::TestVcpu;
use guest_state::{
    ControlRegisters, GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, Registers,
};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};
use probe_engine::emulate::{self, Outcome};
use probe_engine::relocate;

use crate::case::Case;
use crate::cpu::{Cpu, State};
use crate::flags;

/// The result of a case that agrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreed {
    /// The CPU and the engine executed it with the same result.
    Done,
    /// Both executed it with the same result, except for flags that the manual leaves undefined.
    ButUndefinedFlags,
    /// On the CPU it faults, and the engine left the state alone, or its copy faulted in the same
    /// way.
    Faulted,
    /// The engine doesn't do this to such instructions.
    NotDone,
}

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    /// The CPU and the engine disagree.
    #[error("{0}")]
    Result(Box<Difference>),
    /// The system doesn't let the case be executed.
    #[error("cannot execute code here: {0}")]
    System(#[from] std::io::Error),
}

/// A case with two results.
#[derive(Debug)]
pub struct Difference {
    case: Case,
    cpu: State,
    engine: State,
    outcome: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            case,
            cpu,
            engine,
            outcome,
        } = self;
        writeln!(
            f,
            "`{}` ({:02x?}), gs {:#x}: {outcome}, while the CPU had {:x?}",
            text(&case.insn),
            case.code,
            case.gs_base,
            cpu.fault
        )?;
        writeln!(f, "before {:x?}", case.registers)?;
        writeln!(f, "cpu    {:x?}", cpu.registers)?;
        writeln!(f, "engine {:x?}", engine.registers)?;
        let all = case.data.iter().zip(&cpu.data).zip(&engine.data);
        let differ = all
            .enumerate()
            .filter(|(_, ((_, cpu), engine))| cpu != engine);
        for (at, ((before, cpu), engine)) in differ.take(16) {
            writeln!(
                f,
                "data+{at:#x}: before {before:02x}, cpu {cpu:02x}, engine {engine:02x}"
            )?;
        }
        if (&cpu.vectors, &cpu.fpu) != (&engine.vectors, &engine.fpu) {
            writeln!(f, "vector or FPU registers differ")?;
        }
        Ok(())
    }
}

/// Executes a case on the CPU and emulates it.
///
/// # Errors
/// They disagree.
pub fn emulated(cpu: &mut Cpu, case: &Case) -> Result<Agreed, Mismatch> {
    let memory = Copy {
        base: cpu.layout().data,
        bytes: Mutex::new(case.data.clone()),
    };
    let mut vcpu = TestVcpu {
        registers: case.registers,
        control: ControlRegisters {
            gs_base: case.gs_base,
            code64: true,
            ..ControlRegisters::default()
        },
        ..TestVcpu::default()
    };
    let Some(outcome) = emulate::once(&case.code, &memory, &mut vcpu) else {
        return Ok(Agreed::NotDone);
    };
    let on_cpu = cpu.execute(case)?;
    let engine = State {
        registers: vcpu.registers,
        data: memory.into_bytes(),
        vectors: case.vectors.clone(),
        fpu: on_cpu.fpu.clone(),
        fault: None,
    };
    let differ = |engine| {
        Err(Mismatch::Result(Box::new(Difference {
            case: case.clone(),
            cpu: on_cpu.clone(),
            engine,
            outcome: format!("the engine's outcome is {outcome:?}"),
        })))
    };
    if on_cpu.fault.is_some() {
        // All of the instruction is done, or nothing.
        let untouched = engine.registers == case.registers && engine.data == case.data;
        return if outcome != Outcome::Done && untouched {
            Ok(Agreed::Faulted)
        } else {
            differ(engine)
        };
    }
    let flags = engine.registers.rflags ^ on_cpu.registers.rflags;
    let undefined = flags::undefined(case);
    let as_cpu = State {
        registers: Registers {
            rflags: on_cpu.registers.rflags,
            ..engine.registers
        },
        ..engine.clone()
    };
    if outcome != Outcome::Done || flags & !undefined != 0 || as_cpu != on_cpu {
        return differ(engine);
    }
    Ok(if flags == 0 {
        Agreed::Done
    } else {
        Agreed::ButUndefinedFlags
    })
}

/// The name of the instruction that `code` begins with.
pub fn name(code: &[u8]) -> String {
    let insn = Decoder::new(64, code, DecoderOptions::NONE).decode();
    format!("{:?}", insn.mnemonic()).to_lowercase()
}

/// Returns true if the engine emulates the instruction that `code` begins with.
pub fn is_emulated(code: &[u8]) -> bool {
    let nothing = Copy {
        base: 0,
        bytes: Mutex::default(),
    };
    emulate::once(code, &nothing, &mut TestVcpu::default()).is_some()
}

/// Executes a case's instruction on the CPU, and the engine's copies of it for other addresses.
///
/// # Errors
/// They disagree.
pub fn relocated(cpu: &mut Cpu, case: &Case) -> Result<Agreed, Mismatch> {
    let layout = cpu.layout();
    let relocate = |to| {
        relocate::for_comparison(&case.code, GuestVirtAddr(layout.code), GuestVirtAddr(to)).ok()
    };
    let Some(boosted) = relocate(layout.copy).and_then(|made| made.boosted) else {
        return Ok(Agreed::NotDone);
    };
    let mut copies = vec![(boosted, layout.copy)];
    copies.extend(relocate(layout.far).map(|made| {
        // jmp [rip]
        let mut code = made.copy;
        code.extend([0xff, 0x25, 0, 0, 0, 0]);
        code.extend((layout.code + case.code.len() as u64).to_le_bytes());
        (code, layout.far)
    }));
    let in_line = cpu.execute(case)?;
    for (code, at) in copies {
        let mut copy = cpu.execute_copy(case, &code, at)?;
        if copy.fault.is_some() && copy.registers.rip == at {
            copy.registers.rip = layout.code;
        }
        if copy != in_line {
            return Err(Mismatch::Result(Box::new(Difference {
                case: case.clone(),
                outcome: format!("the copy {code:02x?} at {at:#x} had {:x?}", copy.fault),
                cpu: in_line,
                engine: copy,
            })));
        }
    }
    Ok(if in_line.fault.is_some() {
        Agreed::Faulted
    } else {
        Agreed::Done
    })
}

/// The instruction in AT&T syntax.
pub fn text(insn: &Instruction) -> String {
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
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn with(
        &self,
        at: GuestPhysAddr,
        len: usize,
        access: impl FnOnce(&mut [u8]),
    ) -> Result<(), MemoryError> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
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
