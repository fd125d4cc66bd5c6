//! Space for a record in the vCPU's ring, and what happens when there is none.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, qword_ptr, registers as reg,
};

use super::error::DetourError;
use crate::ring::layout;

/// Space in the ring, and what is left to write: what happens when there is none.
pub(super) struct RingSpace {
    full: CodeLabel,
    retry: CodeLabel,
    done: CodeLabel,
    block: AsmRegister64,
}

/// Labels of what a lossless detour does about a full ring.
pub(super) struct Wait {
    /// The int3.
    pub(super) int3: CodeLabel,
    /// The way on without a record.
    pub(super) gives_up: CodeLabel,
}

impl RingSpace {
    /// `done` is where execution goes on without a record; `block` will have the distance from GS
    /// base to the vCPU's block.
    pub(super) fn new(a: &mut CodeAssembler, done: CodeLabel, block: AsmRegister64) -> Self {
        Self {
            full: a.create_label(),
            retry: a.create_label(),
            done,
            block,
        }
    }

    /// Reserves space for a record in the ring: `len` bytes, and as many more as the register `more` says. Then RAX has
    /// HEAD as it was before; `second` is used.
    pub(super) fn reserve(
        &mut self,
        a: &mut CodeAssembler,
        second: AsmRegister64,
        (len, more): (u64, Option<AsmRegister64>),
    ) -> Result<(), IcedError> {
        let head = qword_ptr(self.block + layout::HEAD).gs();
        a.set_label(&mut self.retry)?;
        a.mov(reg::rax, head)?;
        a.mov(second, reg::rax)?;
        a.sub(second, qword_ptr(self.block + layout::TAIL).gs())?;
        if let Some(more) = more {
            a.add(second, more)?;
        }
        a.cmp(second, (layout::RING_LEN - len) as i32)?;
        a.ja(self.full)?;
        match more {
            Some(more) => a.lea(second, qword_ptr(reg::rax + more + len))?,
            None => a.lea(second, qword_ptr(reg::rax + len))?,
        }
        a.cmpxchg(head, second)?;
        a.jne(self.retry)
    }

    /// Writes what happens when the ring is full: the trap if `lossless`, else a count in the cell.
    pub(super) fn write(
        mut self,
        a: &mut CodeAssembler,
        cell: u32,
        lossless: bool,
    ) -> Result<Option<Wait>, DetourError> {
        let place = i32::try_from(place(cell)).map_err(|_| DetourError::Unknown {
            name: "the detour's counter",
        })?;
        self.check(a)?;
        let mut trap = lossless.then(|| Wait::new(a));
        if let Some(trap) = &mut trap {
            self.trap(a, trap, self.retry)?;
        }
        a.inc(dword_ptr(self.block + place).gs())?;
        a.jmp(self.done)?;
        Ok(trap)
    }

    /// Writes the first part of that: it tries again if HEAD has changed, as HEAD and TAIL may have
    /// been of two vCPUs, with a migration in between.
    pub(super) fn check(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.set_label(&mut self.full)?;
        a.cmp(qword_ptr(self.block + layout::HEAD).gs(), reg::rax)?;
        a.jne(self.retry)
    }

    /// Writes the trap, behind which execution goes on at `retry`. The code that follows is for when the host gives up.
    pub(super) fn trap(
        &self,
        a: &mut CodeAssembler,
        trap: &mut Wait,
        retry: CodeLabel,
    ) -> Result<(), IcedError> {
        a.set_label(&mut trap.int3)?;
        a.int3()?;
        a.jmp(retry)?;
        a.set_label(&mut trap.gives_up)
    }
}

impl Wait {
    pub(super) fn new(a: &mut CodeAssembler) -> Self {
        Self {
            int3: a.create_label(),
            gives_up: a.create_label(),
        }
    }
}

/// A counter's place in the block.
pub(super) fn place(cell: u32) -> u64 {
    layout::CELLS + layout::CELL * u64::from(cell)
}
