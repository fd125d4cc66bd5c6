//! The memory that a stepped instruction will touch.
//!
//! A lone step keeps every other vCPU stopped. If it page-faulted, the guest's
//! handler would run in that state, so the faults are foreseen and raised
//! instead of the step.

use iced_x86::{
    CodeSize, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::compile::address_of;
use super::memory::{Access, Trouble, View};
use super::plan::{Address, Segment};
use crate::addr::GuestVirtAddr;
use crate::vcpu::Registers;

/// One access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Touch {
    address: Address,
    /// Bytes; at least one.
    len: u64,
    access: Access,
    /// Bit instructions reach beyond the operand: this register's value is a
    /// bit offset in units of so many bytes.
    bit: Option<(u8, u64)>,
}

/// All accesses of an instruction whose address the engine can compute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    touches: Vec<Touch>,
    /// A string instruction that does nothing when RCX is zero.
    repeats: bool,
    len: u64,
}

impl Touched {
    /// What `insn` touches; of a repeated instruction, each time round.
    pub(crate) fn by(insn: &Instruction, repeats: bool) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info_options(insn, InstructionInfoOptions::NO_REGISTER_USAGE);
        let mut touches: Vec<_> = info
            .used_memory()
            .iter()
            .filter(|used| used.address_size() == CodeSize::Code64 && used.vsib_size() == 0)
            .filter_map(|used| {
                let access = match used.access() {
                    OpAccess::Read | OpAccess::CondRead => Access::Read,
                    OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite => Access::Write,
                    _ => return None,
                };
                // Already absolute here, unlike the operand of the instruction.
                let base = if used.base() == Register::RIP {
                    Register::None
                } else {
                    used.base()
                };
                let rip_relative = insn.is_ip_rel_memory_operand()
                    && used.base() == Register::None
                    && used.displacement() == insn.ip_rel_memory_address();
                let base = if rip_relative { Register::RIP } else { base };
                let address = address_of(
                    insn,
                    used.segment(),
                    base,
                    used.index(),
                    used.scale(),
                    used.displacement(),
                )?;
                let len = (used.memory_size().size() as u64).max(1);
                Some(Touch {
                    address,
                    len,
                    access,
                    bit: bit_offset(insn),
                })
            })
            .collect();
        // An instruction reads all of its sources before it writes.
        touches.sort_by_key(|touch| touch.access == Access::Write);
        Self {
            touches,
            repeats,
            len: insn.len() as u64,
        }
    }

    /// The page fault that the instruction at RIP would raise, if any.
    pub(crate) fn fault(&self, view: &View<'_>, regs: &Registers) -> Option<(GuestVirtAddr, u32)> {
        if self.repeats && regs.rcx == 0 {
            return None;
        }
        self.touches
            .iter()
            .find_map(|touch| touch.fault(view, regs, self.len))
    }

    /// True when there is nothing to check.
    pub(crate) fn is_empty(&self) -> bool {
        self.touches.is_empty()
    }
}

impl Touch {
    fn fault(
        &self,
        view: &View<'_>,
        regs: &Registers,
        insn_len: u64,
    ) -> Option<(GuestVirtAddr, u32)> {
        let segment = match self.address.segment {
            Segment::Flat => 0,
            Segment::Fs => view.control().fs_base,
            Segment::Gs => view.control().gs_base,
        };
        let end = regs.rip.wrapping_add(insn_len);
        let mut start = self.address.resolve(regs, end).wrapping_add(segment);
        if let Some((register, bytes)) = self.bit {
            start = start.wrapping_add(bit_displacement(regs.by_number(register), bytes));
        }
        // The largest operand there is (an XSAVE area) is less than three pages.
        let last = start.wrapping_add(self.len - 1);
        let second = (start | 0xfff).wrapping_add(1);
        let pages = [Some(start), (second <= last).then_some(second), Some(last)];
        pages.into_iter().flatten().find_map(|at| {
            match view.translate(GuestVirtAddr(at), self.access, regs.rflags) {
                Err(Trouble::Fault {
                    address,
                    error_code,
                }) => Some((address, error_code)),
                Ok(_) | Err(Trouble::Step) => None,
            }
        })
    }
}

/// The register and unit of `bt`, `bts`, `btr` and `btc` on memory.
fn bit_offset(insn: &Instruction) -> Option<(u8, u64)> {
    let bits = matches!(
        insn.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    ) && insn.op1_kind() == OpKind::Register;
    let number = u8::try_from(insn.op1_register().full_register().number()).ok()?;
    bits.then(|| (number, insn.op1_register().size() as u64))
}

/// How far from the operand the unit with bit `offset` is (SDM vol. 2, 3.1.1.9).
fn bit_displacement(offset: u64, bytes: u64) -> u64 {
    let unused = 64 - 8 * bytes as u32;
    let offset = (offset << unused).cast_signed() >> unused;
    offset
        .div_euclid(8 * bytes as i64)
        .wrapping_mul(bytes as i64)
        .cast_unsigned()
}
