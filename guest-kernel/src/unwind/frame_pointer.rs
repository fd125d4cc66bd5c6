//! The walk by frame pointers, in kernels without ORC tables.
//!
//! Source: `arch/x86/kernel/unwind_frame.c` (`CONFIG_UNWINDER_FRAME_POINTER`). There, each function keeps its
//! caller's RBP and return address at its own RBP, in this order. The kernel ends a trace by the task's
//! `struct pt_regs`; here the end is that entry code clears RBP (`PUSH_AND_CLEAR_REGS` in
//! `arch/x86/entry/calling.h`).

use guest_state::GuestVirtAddr;

use super::pt_regs::{self, Interrupted, Whole};
use super::trace::TraceEnd;
use super::walk::Walk;

/// The lowest bit of RBP where it leads to a `struct pt_regs` (`ENCODE_FRAME_POINTER`).
const IS_REGISTERS: u64 = 1;

/// Instructions in front of which RBP is still the caller's, and how far above RSP the return address is then.
const PROLOGUE: [(&[u8], u64); 4] = [
    // endbr64
    (&[0xf3, 0x0f, 0x1e, 0xfa], 0),
    // push rbp
    (&[0x55], 0),
    // mov rbp, rsp
    (&[0x48, 0x89, 0xe5], 8),
    // ret
    (&[0xc3], 0),
];

impl Walk<'_, '_> {
    /// Goes to the caller by RBP.
    pub(super) fn by_frame_pointer(&mut self) -> Result<(), TraceEnd> {
        let mut next = self.at;
        (next.signal, next.interrupted) = (false, Interrupted::No);
        if let Some(above) = self.frameless() {
            let slot = self.at.sp.wrapping_add(above);
            next.ip = self.returned(slot)?;
            next.sp = slot.wrapping_add(8);
            return self.go(next);
        }
        let bp = self.at.bp;
        if bp.0 == 0 {
            return Err(TraceEnd::Complete);
        }
        if bp.0 & IS_REGISTERS != 0 {
            let regs = GuestVirtAddr(bp.0 & !IS_REGISTERS);
            self.came(regs, &mut next)?;
            next.bp = self.address(regs.wrapping_add(pt_regs::RBP))?;
            next.signal = true;
            next.interrupted = Interrupted::Whole(Whole::At(regs));
            return self.go(next);
        }
        next.ip = self.returned(bp.wrapping_add(8))?;
        next.bp = self.address(bp)?;
        next.sp = bp.wrapping_add(16);
        self.go(next)
    }

    /// Returns how far above RSP the return address is, if the code is known to have no frame yet, or none any more.
    fn frameless(&mut self) -> Option<u64> {
        if !self.at.signal {
            return None;
        }
        let code = (self.around.memory)(self.at.ip)?.to_le_bytes();
        let known = PROLOGUE.iter().find(|(start, _)| code.starts_with(start));
        known.map(|(_, above)| *above)
    }
}
