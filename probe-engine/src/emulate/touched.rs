//! The memory that a stepped instruction will touch.
//!
//! A lone step keeps every other vCPU stopped. If it page-faulted, the guest's
//! handler would run in that state, so the faults are foreseen and raised
//! instead of the step.

use std::ops::Range;

use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::supervisor::{AccessError, Intent, SupervisorMemory};
use guest_state::{GuestVirtAddr, Registers};
use iced_x86::{
    CodeSize, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::compile::address_of;
use super::compiled::{Address, Width};
use super::flags::DF;

/// How many pages of a repeated instruction's operand are looked at.
const MAX_PAGES: u64 = 1024;

/// One access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Touch {
    address: Address,
    /// Bytes; at least one.
    len: u64,
    access: Intent,
    /// Bit instructions reach beyond the operand: this register's value is a bit offset in units of
    /// this many bytes.
    bit: Option<(u8, u64)>,
}

/// What an access does can't be foreseen here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnlyCpuKnows;

/// All accesses of an instruction whose address the engine can compute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    touches: Vec<Touch>,
    /// A string instruction that does nothing when RCX is zero.
    repeats: bool,
    len: u64,
}

impl Touched {
    /// Finds what `insn` touches; of a repeated instruction, each time round.
    pub(crate) fn by(insn: &Instruction, repeats: bool) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info_options(insn, InstructionInfoOptions::NO_REGISTER_USAGE);
        let mut touches: Vec<_> = info
            .used_memory()
            .iter()
            .filter(|used| used.address_size() == CodeSize::Code64 && used.vsib_size() == 0)
            .filter_map(|used| {
                let access = match used.access() {
                    OpAccess::Read | OpAccess::CondRead => Intent::Read,
                    OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite => Intent::Write,
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
        touches.sort_by_key(|touch| touch.access == Intent::Write);
        Self {
            touches,
            repeats,
            len: insn.len() as u64,
        }
    }

    /// Returns the page fault that the instruction at RIP would raise, if any.
    ///
    /// # Errors
    /// There may be a fault that isn't a page fault.
    pub(crate) fn fault(
        &self,
        view: &SupervisorMemory<'_>,
        regs: &Registers,
    ) -> Result<Option<(GuestVirtAddr, u32)>, OnlyCpuKnows> {
        if self.repeats && regs.rcx == 0 {
            return Ok(None);
        }
        for touch in &self.touches {
            let fault = touch.fault(view, regs, self.len)?;
            if fault.is_some() {
                return Ok(fault);
            }
        }
        if self.repeats {
            for touch in &self.touches {
                touch.later_rounds(view, regs, self.len)?;
            }
        }
        Ok(None)
    }

    /// Reads the value of the only operand in memory, zero-extended; at most eight bytes.
    ///
    /// # Errors
    /// It can't be read.
    pub(crate) fn value(
        &self,
        view: &SupervisorMemory<'_>,
        regs: &Registers,
    ) -> Result<u64, OnlyCpuKnows> {
        let touch = self.touches.first().ok_or(OnlyCpuKnows)?;
        let width = Width::of_bytes(touch.len as usize).ok_or(OnlyCpuKnows)?;
        let at = GuestVirtAddr(touch.start(view, regs, self.len));
        view.span(at, width.bytes(), touch.access, regs.rflags)
            .and_then(|span| view.load(span))
            .map_err(|_| OnlyCpuKnows)
    }

    /// Returns true if any byte of a range is accessed by the instruction at RIP.
    pub(crate) fn overlaps(
        &self,
        view: &SupervisorMemory<'_>,
        regs: &Registers,
        range: Range<u64>,
    ) -> bool {
        self.touches.iter().any(|touch| {
            let start = touch.start(view, regs, self.len);
            start < range.end && range.start < start.saturating_add(touch.len)
        })
    }

    /// Returns true if there is nothing to check.
    pub(crate) fn is_empty(&self) -> bool {
        self.touches.is_empty()
    }
}

impl Touch {
    /// The address of the first byte.
    fn start(&self, view: &SupervisorMemory<'_>, regs: &Registers, insn_len: u64) -> u64 {
        let segment = self.address.segment.value(view);
        let end = regs.rip.wrapping_add(insn_len);
        let mut start = self.address.resolve(regs, end).wrapping_add(segment);
        if let Some((register, bytes)) = self.bit {
            start = start.wrapping_add(bit_displacement(regs.by_number(register), bytes));
        }
        start
    }

    /// Checks that the rounds of a repeated instruction after the first can access their operands,
    /// too.
    fn later_rounds(
        &self,
        view: &SupervisorMemory<'_>,
        regs: &Registers,
        insn_len: u64,
    ) -> Result<(), OnlyCpuKnows> {
        let start = self.start(view, regs, insn_len);
        let behind = regs.rcx.saturating_sub(1).saturating_mul(self.len);
        if behind / PAGE_SIZE > MAX_PAGES {
            return Err(OnlyCpuKnows);
        }
        let (first, last) = if regs.rflags & DF == 0 {
            (start, start.wrapping_add(behind + self.len - 1))
        } else {
            (start.wrapping_sub(behind), start.wrapping_add(self.len - 1))
        };
        for page in 0..=behind / PAGE_SIZE + 1 {
            let at = first.wrapping_add(page * PAGE_SIZE).min(last);
            match view.translate(GuestVirtAddr(at), self.access, regs.rflags) {
                Ok(_) | Err(AccessError::Unmarked) => {}
                Err(AccessError::PageFault { .. } | AccessError::Unknown) => {
                    return Err(OnlyCpuKnows);
                }
            }
        }
        Ok(())
    }

    fn fault(
        &self,
        view: &SupervisorMemory<'_>,
        regs: &Registers,
        insn_len: u64,
    ) -> Result<Option<(GuestVirtAddr, u32)>, OnlyCpuKnows> {
        let start = self.start(view, regs, insn_len);
        // The largest operand there is (an XSAVE area) is less than three pages.
        let last = start.wrapping_add(self.len - 1);
        let second = (start | 0xfff).wrapping_add(1);
        let pages = [Some(start), (second <= last).then_some(second), Some(last)];
        for at in pages.into_iter().flatten() {
            match view.translate(GuestVirtAddr(at), self.access, regs.rflags) {
                Err(AccessError::PageFault {
                    address,
                    error_code,
                }) => return Ok(Some((address, error_code))),
                Err(AccessError::Unknown) => return Err(OnlyCpuKnows),
                Ok(_) | Err(AccessError::Unmarked) => {}
            }
        }
        Ok(None)
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

/// Returns how far from the operand the unit with bit `offset` is (SDM vol. 2, 3.1.1.9).
fn bit_displacement(offset: u64, bytes: u64) -> u64 {
    let unused = 64 - 8 * bytes as u32;
    let offset = (offset << unused).cast_signed() >> unused;
    offset
        .div_euclid(8 * bytes as i64)
        .wrapping_mul(bytes as i64)
        .cast_unsigned()
}
