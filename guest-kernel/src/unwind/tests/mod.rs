//! Tables and stacks made by hand.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Registers};

use super::format::{Bits, ENTRY_LEN, Format, Numbers};
use super::ftrace::FtraceTrampolines;
use super::modules::ModuleOrcs;
use super::orc::RawOrc;
use super::replaced::Replaced;
use super::*;
use crate::btf::Btf;
use crate::image::Image;
use crate::modules::Module;
use crate::symbols::Symbols;

mod foreign;
mod formats;
mod frame_pointers;
mod ftrace;
mod modules;
mod random;
mod replaced;
mod tables;
mod walks;

/// Where the code is.
pub(super) const TEXT: u64 = 0xffff_ffff_8100_0000;
/// How long it is.
pub(super) const TEXT_LEN: u64 = 0x1000;
/// Where a task's stack is.
pub(super) const STACK: u64 = 0xffff_c900_0000_0000;
/// Where the stack for interrupts is.
pub(super) const IRQ_STACK: u64 = 0xffff_c900_0100_0000;

/// How tables are made here.
pub(super) const FORMAT: Format = Format {
    bits: Bits::LongTypeSignal,
    numbers: Numbers::Sp5,
};

/// Encodes an entry in that form.
pub(super) fn encode(entry: OrcEntry) -> [u8; ENTRY_LEN] {
    let base = |base| match base {
        Base::Undefined => 0,
        Base::PreviousSp => 1,
        Base::Register(Register::Rdx) => 2,
        Base::Register(Register::Rdi) => 3,
        Base::Bp => 4,
        Base::Sp => 5,
        Base::Register(Register::R10) => 6,
        Base::Register(Register::R13) => 7,
        Base::BpIndirect => 8,
        Base::SpIndirect => 9,
        Base::Register(Register::Rax) => 10,
        Base::Unknown => 14,
    };
    let frame = match entry.frame {
        FrameType::Undefined => 0,
        FrameType::EndOfStack => 1,
        FrameType::Call => 2,
        FrameType::Registers => 3,
        FrameType::PartialRegisters => 4,
        FrameType::Unknown => 7,
    };
    let [s0, s1] = entry.sp_offset.to_le_bytes();
    let [b0, b1] = entry.bp_offset.to_le_bytes();
    let bases = base(entry.sp) | base(entry.bp) << 4;
    [s0, s1, b0, b1, bases, frame | u8::from(entry.signal) << 3]
}

/// Makes the two halves of a table at an address. Entries: where the code is, and the entry.
pub(super) fn halves(address: u64, entries: &[(u64, OrcEntry)]) -> (Vec<u8>, Vec<u8>) {
    let distance = |(at, i): (u64, u64)| at.wrapping_sub(address + i * 4) as i32;
    let ips = entries
        .iter()
        .zip(0..)
        .flat_map(|((at, _), i)| distance((*at, i)).to_le_bytes());
    let kinds = entries.iter().flat_map(|(_, entry)| encode(*entry));
    (ips.collect(), kinds.collect())
}

/// Makes a table for the text. Entries: where the code is from its start, and the entry.
pub(super) fn orc(entries: &[(u64, OrcEntry)]) -> Orc {
    let entries: Vec<_> = entries.iter().map(|(at, e)| (TEXT + at, *e)).collect();
    let (ips, kinds) = halves(TEXT + 0x10000, &entries);
    let raw = RawOrc {
        address: GuestVirtAddr(TEXT + 0x10000),
        ips: &ips,
        entries: &kinds,
    };
    Orc::new(raw, FORMAT, vec![text()]).unwrap()
}

fn text() -> Range<GuestVirtAddr> {
    GuestVirtAddr(TEXT)..GuestVirtAddr(TEXT + TEXT_LEN)
}

/// Makes an unwinder with such a table, or by frame pointers.
pub(super) fn unwinder(table: Option<Orc>) -> Unwinder {
    Unwinder {
        image: table.map(Arc::new),
        text: [text(), GuestVirtAddr(0)..GuestVirtAddr(0)],
        layout: None,
        modules: Vec::new(),
        replaced: Replaced::default(),
        ftrace: None,
    }
}

/// Makes a call frame whose caller's stack pointer is `sp_offset` bytes above RSP.
pub(super) fn call(sp_offset: i16) -> OrcEntry {
    OrcEntry {
        sp_offset,
        ..OrcEntry::CALLED
    }
}

/// Makes an entry without an RBP.
pub(super) fn entry(frame: FrameType, sp: Base, sp_offset: i16) -> OrcEntry {
    OrcEntry {
        sp,
        sp_offset,
        bp: Base::Undefined,
        bp_offset: 0,
        frame,
        signal: matches!(frame, FrameType::Registers | FrameType::PartialRegisters),
    }
}

/// Code that nothing called.
pub(super) const END: OrcEntry = OrcEntry {
    sp: Base::Undefined,
    sp_offset: 0,
    bp: Base::Undefined,
    bp_offset: 0,
    frame: FrameType::EndOfStack,
    signal: false,
};

/// What lies in memory, in words.
#[derive(Debug, Clone, Default)]
pub(super) struct Words(pub(super) BTreeMap<u64, u64>);

impl Words {
    /// Makes empty memory.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Puts words from an address on.
    pub(super) fn put(mut self, at: u64, words: &[u64]) -> Self {
        self.0.extend((at..).step_by(8).zip(words.iter().copied()));
        self
    }

    /// Puts a `struct pt_regs`. Registers: offset and value.
    pub(super) fn regs(self, at: u64, cs: u64, rip: u64, rsp: u64, more: &[(u64, u64)]) -> Self {
        let mut words = self.put(at, &[0; 21]);
        for (offset, value) in [(128, rip), (136, cs), (152, rsp)].iter().chain(more) {
            words = words.put(at + offset, &[*value]);
        }
        words
    }

    pub(super) fn read(&self, at: GuestVirtAddr) -> Option<u64> {
        self.0.get(&at.0).copied()
    }
}

/// Kernel and user code segments.
pub(super) const KERNEL_CS: u64 = 0x10;
pub(super) const USER_CS: u64 = 0x33;

/// Makes the registers of code at an offset from the start of the text.
pub(super) fn at(offset: u64, rsp: u64, rbp: u64) -> Registers {
    Registers {
        rip: TEXT + offset,
        rsp,
        rbp,
        ..Registers::default()
    }
}

/// Unwinds, with nothing inserted and no task.
pub(super) fn walk(unwinder: &Unwinder, words: &Words, start: &Registers) -> StackTrace {
    let around = Surroundings {
        memory: &mut |at| words.read(at),
        kernel: &mut |_| None,
        foreign: &mut |_, _, _| None,
        task: None,
    };
    unwinder.unwind(start, around, 64)
}

/// Returns the addresses of a trace, from the start of the text.
pub(super) fn offsets(trace: &StackTrace) -> Vec<u64> {
    let offset = |at: &GuestVirtAddr| at.0.wrapping_sub(TEXT);
    trace.addresses.iter().map(offset).collect()
}
