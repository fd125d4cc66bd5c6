//! What is in a record besides what all records have.

use crate::fetch::Fetches;
use crate::value::{Values, encoded_max};
use guest_kernel::context::TaskContext;

use super::layout;

/// The parts of a record of a hit, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shape {
    /// The registers.
    pub registers: Fetches,
    /// True if records have the current task's context ([`super::Record::context`]).
    pub context: bool,
    /// The values, each as long as it turns out to be ([`crate::value::Recorded`]).
    pub values: Values,
}

impl Shape {
    /// A record of registers only.
    pub fn of(registers: Fetches) -> Self {
        Self {
            registers,
            ..Self::default()
        }
    }

    /// Where the context is, in bytes from the record's start.
    pub const fn context_at(&self) -> u64 {
        layout::RECORD_VALUES + self.registers.len_bytes()
    }

    /// Where the values begin, in bytes from the record's start.
    pub const fn values_at(&self) -> u64 {
        let context = if self.context { layout::CONTEXT_LEN } else { 0 };
        self.context_at() + context
    }

    /// Returns true if a record has room for all of this at its longest.
    pub fn fits(&self) -> bool {
        self.values_at() + encoded_max(&self.values) <= 8 * layout::WORDS_MAX
    }
}

/// Words of a record that its context takes.
pub(super) const CONTEXT_WORDS: usize = layout::CONTEXT_LEN as usize / 8;

/// The context in those words of a record.
pub(super) fn context(words: &[[u8; 8]; CONTEXT_WORDS]) -> Option<TaskContext> {
    let bytes = words.as_flattened();
    let number = |at: u64| {
        let bytes = bytes.get(at as usize..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let flags = bytes.get(layout::CONTEXT_FLAGS as usize..)?.first_chunk()?;
    Some(TaskContext {
        pid: number(layout::CONTEXT_PID)?,
        tgid: number(layout::CONTEXT_TGID)?,
        comm: *bytes.get(layout::CONTEXT_COMM as usize..)?.first_chunk()?,
        preempt_count: number(layout::CONTEXT_PREEMPT)?,
        migration_disabled: number(layout::CONTEXT_MIGRATION)?,
        thread_flags: u64::from_le_bytes(*flags),
    })
}
