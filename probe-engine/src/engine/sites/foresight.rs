//! Which exceptions an instruction will raise, computed before it is executed in a copy: there, an
//! exception would show the guest the copy's address.

use guest_state::x86_64::supervisor::SupervisorMemory;
use guest_state::{GuestMemory, GuestVirtAddr, Registers, Vcpu};
use iced_x86::{Instruction, OpKind, Register};

use crate::emulate::{OnlyCpuKnows, Touched};
use crate::relocate::Division;

/// What has to be looked at before an instruction is executed.
#[derive(Debug, Clone)]
pub(crate) struct Foresight {
    touched: Touched,
    division: Option<(Division, Divisor)>,
}

/// Where a divisor is.
#[derive(Debug, Clone, Copy)]
enum Divisor {
    /// The low bits of the register that encodings call by this number.
    Register(u8),
    /// The only memory operand.
    Memory,
}

/// What is known of an instruction before it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Foreseen {
    /// It raises no exception.
    Nothing,
    PageFault {
        address: GuestVirtAddr,
        error_code: u32,
    },
    /// It raises another one, or only the CPU can tell.
    Unknown,
}

impl Foresight {
    pub(crate) fn of(insn: &Instruction, repeats: bool) -> Self {
        Self {
            touched: Touched::by(insn, repeats),
            division: Division::of(insn).zip(Divisor::of(insn)),
        }
    }

    /// Returns true if all exceptions of a division are foreseen.
    pub(crate) fn knows_division(&self) -> bool {
        self.division.is_some()
    }

    /// Returns what the instruction at RIP will raise.
    pub(crate) fn look(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Foreseen {
        let registers = *vcpu.registers();
        if self.touched.is_empty() {
            return self.divide(&registers, None);
        }
        let Some(view) = vcpu
            .control()
            .ok()
            .and_then(|control| SupervisorMemory::new(memory, control).ok())
        else {
            return Foreseen::Unknown;
        };
        match self.touched.fault(&view, &registers) {
            Ok(None) => self.divide(&registers, Some(&view)),
            Ok(Some((address, error_code))) => Foreseen::PageFault {
                address,
                error_code,
            },
            Err(OnlyCpuKnows) => Foreseen::Unknown,
        }
    }

    fn divide(&self, registers: &Registers, view: Option<&SupervisorMemory<'_>>) -> Foreseen {
        let Some((division, divisor)) = self.division else {
            return Foreseen::Nothing;
        };
        let divisor = match divisor {
            Divisor::Register(number) => Some(registers.by_number(number)),
            Divisor::Memory => view.and_then(|view| self.touched.value(view, registers).ok()),
        };
        match divisor {
            Some(divisor) if !division.faults(registers, divisor) => Foreseen::Nothing,
            _ => Foreseen::Unknown,
        }
    }
}

impl Divisor {
    fn of(insn: &Instruction) -> Option<Self> {
        let high = [Register::AH, Register::BH, Register::CH, Register::DH];
        match insn.op0_kind() {
            OpKind::Memory => Some(Self::Memory),
            OpKind::Register if high.contains(&insn.op0_register()) => None,
            OpKind::Register => {
                let number = insn.op0_register().full_register().number();
                u8::try_from(number).ok().map(Self::Register)
            }
            _ => None,
        }
    }
}
