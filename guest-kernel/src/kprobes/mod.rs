//! The guest's own kprobes: where it has them, and what they hide.
//!
//! The kernel keeps them in a table, whose layout BTF describes. The guest is not trusted: the walk is
//! bounded, and an implausible entry ends it.
//!
//! Sources, for both Linux 6.1 and 6.12: `kernel/kprobes.c` (`kprobe_table`, `kprobe_mutex`,
//! `aggr_pre_handler`), `include/linux/kprobes.h` (flags, `struct kprobe`, `struct optimized_kprobe`),
//! `arch/x86/kernel/kprobes/opt.c` (what an optimized one overwrites, and what it has copied).

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::{INT3, JMP_REL32, jmp_rel32};

mod read;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    reason = "only tests use it, on memory that is there"
)]
pub mod synthetic;
#[cfg(test)]
mod tests;

pub use read::KprobeReader;

/// Bytes of the displacement of a kprobe's jump. The guest keeps a copy of the text that it overwrites.
const DISPLACEMENT: usize = 4;

/// A kprobe of the guest's own that is, or may be, in its text. A kprobe that uses an ftrace site isn't one of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestKprobe {
    /// The instruction that it is on.
    pub at: GuestVirtAddr,
    /// The first byte of that instruction as it was when the kprobe was registered; what the guest puts
    /// back when it disarms it.
    pub opcode: u8,
    /// Set if the guest can make a jump of it, or has.
    pub jump: Option<GuestJump>,
}

/// The guest's jump in the place of a kprobe, now or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestJump {
    /// Where it leads.
    pub to: GuestVirtAddr,
    /// How many bytes of text the guest has copied, to execute them elsewhere; at least 5.
    pub len: u64,
    /// The bytes that the jump's displacement overwrites while the jump is in the text.
    pub copied: [u8; DISPLACEMENT],
}

impl GuestKprobe {
    /// Returns the bytes of text that only the guest may change while it has this kprobe.
    pub fn range(&self) -> Range<GuestVirtAddr> {
        let len = self.jump.as_ref().map_or(1, |jump| jump.len);
        self.at..self.at.wrapping_add(len)
    }

    /// Puts the bytes that the kprobe hides back into a copy of the guest's text; the copy begins at `start`.
    fn unmask(&self, start: GuestVirtAddr, text: &mut [u8]) {
        let from_start = self.at.0.wrapping_sub(start.0);
        let index = |offset: u64| usize::try_from(from_start.wrapping_add(offset)).ok();
        let is = |text: &[u8], offset, byte| match index(offset).and_then(|at| text.get(at)) {
            Some(there) => *there == byte,
            None => true,
        };
        let put = |text: &mut [u8], offset, byte| {
            if let Some(there) = index(offset).and_then(|at| text.get_mut(at)) {
                *there = byte;
            }
        };
        let mut is_jump = false;
        if let Some(jump) = &self.jump {
            // The guest writes and removes the jump in steps, its displacement and its opcode separately.
            let bytes = jmp_rel32(self.at, jump.to);
            let mut displacement = (0..).zip(bytes.into_iter().flatten()).skip(1);
            is_jump = bytes.is_some() && displacement.all(|(at, byte)| is(text, at, byte));
            if is_jump {
                let copied = (1..).zip(jump.copied);
                copied.for_each(|(at, byte)| put(text, at, byte));
            }
        }
        if is(text, 0, INT3) || is_jump && is(text, 0, JMP_REL32) {
            put(text, 0, self.opcode);
        }
    }
}

/// All kprobes of a guest at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestKprobes {
    /// By their addresses.
    probes: Vec<GuestKprobe>,
    /// True if the guest is registering or removing a kprobe: it may have read text for a kprobe that isn't
    /// in this list yet.
    pub changing: bool,
}

impl GuestKprobes {
    fn new(mut probes: Vec<GuestKprobe>, changing: bool) -> Self {
        probes.sort_by_key(|probe| probe.at);
        Self { probes, changing }
    }

    /// Returns the kprobe on the instruction at `at`.
    pub fn on(&self, at: GuestVirtAddr) -> Option<&GuestKprobe> {
        let index = self.probes.binary_search_by_key(&at, |probe| probe.at);
        self.probes.get(index.ok()?)
    }

    /// Returns a kprobe whose range has one of these bytes.
    pub fn overlapping(&self, range: Range<GuestVirtAddr>) -> Option<&GuestKprobe> {
        /// More bytes than a guest copies for a jump (`MAX_OPTIMIZED_LENGTH`).
        const LONGEST: u64 = 32;
        let from = GuestVirtAddr(range.start.0.saturating_sub(LONGEST));
        let first = self.probes.partition_point(|probe| probe.at < from);
        let near = self.probes[first..].iter();
        near.take_while(|probe| probe.at < range.end)
            .find(|probe| probe.range().end > range.start)
    }

    /// Puts the bytes that the kprobes hide back into a copy of the guest's text, read at `start`.
    pub fn unmask(&self, start: GuestVirtAddr, text: &mut [u8]) {
        let end = start.wrapping_add(text.len() as u64);
        let from = GuestVirtAddr(start.0.saturating_sub(DISPLACEMENT as u64));
        let first = self.probes.partition_point(|probe| probe.at < from);
        let near = self.probes[first..].iter();
        near.take_while(|probe| probe.at < end)
            .for_each(|probe| probe.unmask(start, text));
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.probes.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.probes.is_empty()
    }
}
