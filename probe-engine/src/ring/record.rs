//! What is in a record.

use guest_kernel::context::TaskContext;
use guest_state::{Registers, Tsc, VcpuId};

use super::run::RecordHeader;
use super::shape::{CONTEXT_WORDS, Shape, context};
use crate::fetch::{Fetched, Fetches};
use crate::value::Recorded;

/// What a detour has left behind. It refers to the bytes that were read: many records are only counted, so registers
/// and values are made of the bytes when they are asked for.
#[derive(Debug)]
pub struct Record<'a> {
    /// The vCPU in whose ring it was. The task was on that vCPU when the probe was hit; if it was preempted in the
    /// detour, it may have written the record on another one.
    pub vcpu: VcpuId,
    /// The detour's number.
    pub detour: u32,
    /// When it was written, in the guest's ticks.
    pub tsc: Tsc,
    /// The current task, `task_struct`'s address; 0 if it isn't known.
    pub task: u64,
    /// The recorded values.
    pub values: Recorded<&'a [[u8; 8]]>,
    /// The call, if this is of its return.
    pub call: Option<Returned<'a>>,
    registers: Fetched<'a>,
    context: Option<&'a [[u8; 8]; CONTEXT_WORDS]>,
}

/// What the record of a return tells of its call.
#[derive(Debug)]
pub struct Returned<'a> {
    /// The address that the call was made from, and returns to.
    pub caller: u64,
    /// When it began, in the guest's ticks.
    pub entry_tsc: Tsc,
    entry: Fetched<'a>,
}

impl<'a> Record<'a> {
    /// Reads the words of a hit's record, or of a return's. `None` if they don't fit this shape.
    pub(super) fn read(
        vcpu: VcpuId,
        header: RecordHeader,
        mut words: &'a [[u8; 8]],
        shape: &Shape,
    ) -> Option<Self> {
        let words = &mut words;
        let _header = next(words)?;
        let (tsc, task) = (Tsc(next(words)?), next(words)?);
        let (registers, call) = if header.returns {
            let registers = Fetches::ALL.split_off(words)?;
            let call = Returned {
                caller: next(words)?,
                entry_tsc: Tsc(next(words)?),
                entry: Fetches::ALL.split_off(words)?,
            };
            (registers, Some(call))
        } else {
            (shape.registers.split_off(words)?, None)
        };
        let context = match shape.context || header.returns {
            true => Some(words.split_off(..CONTEXT_WORDS)?.as_array()?),
            false => None,
        };
        let values = Recorded::split_off(&shape.values, words)?;
        let record = Self {
            vcpu,
            detour: header.detour,
            tsc,
            task,
            values,
            call,
            registers,
            context,
        };
        words.is_empty().then_some(record)
    }

    /// The registers that it has; the others are 0, and so is RIP.
    pub fn registers(&self) -> Registers {
        self.registers.registers()
    }

    /// What the current task was, if that is recorded.
    pub fn context(&self) -> Option<TaskContext> {
        context(self.context?)
    }
}

impl Returned<'_> {
    /// All registers at its beginning but RIP.
    pub fn entry(&self) -> Registers {
        self.entry.registers()
    }
}

/// Takes the next word.
fn next(words: &mut &[[u8; 8]]) -> Option<u64> {
    words.split_off_first().copied().map(u64::from_le_bytes)
}
