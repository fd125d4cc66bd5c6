//! The code that ftrace makes for each of its users.
//!
//! It is a copy of `ftrace_caller`, or of `ftrace_regs_caller` for a user that wants all registers
//! (`create_trampoline` in `arch/x86/kernel/ftrace.c`). So what the image's table says of the original holds for the
//! copy as well (`orc_ftrace_find` in `arch/x86/kernel/unwind_orc.c`).

use guest_state::GuestVirtAddr;

use super::trace::ReadWord;
use crate::btf::Btf;
use crate::symbols::Symbols;

/// How many users one walk looks at. A longer list is taken to be circular.
const MAX_USERS: u32 = 4096;
/// `FTRACE_OPS_FL_SAVE_REGS` (`include/linux/ftrace.h`): the user wants all registers.
const SAVE_REGS: u64 = 1 << 2;

/// How to find the original of code that ftrace has copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FtraceTrampolines {
    /// `ftrace_ops_list`, which points to the first `struct ftrace_ops`.
    list: GuestVirtAddr,
    caller: GuestVirtAddr,
    regs_caller: GuestVirtAddr,
    /// Offsets in a `struct ftrace_ops`, in bytes.
    next: u64,
    flags: u64,
    start: u64,
    len: u64,
}

impl FtraceTrampolines {
    /// Finds where a kernel has the list of ftrace's users, by its symbols and types; `None` for a kernel without
    /// ftrace.
    pub(super) fn find(symbols: &Symbols, btf: Option<&Btf>) -> Option<Self> {
        let address = |name| Some(symbols.get(name)?.address);
        let offset = |name| Some(btf?.member("ftrace_ops", name).ok()?.offset);
        Some(Self {
            list: address("ftrace_ops_list")?,
            caller: address("ftrace_caller")?,
            regs_caller: address("ftrace_regs_caller")?,
            next: offset("next")?,
            flags: offset("flags")?,
            start: offset("trampoline")?,
            len: offset("trampoline_size")?,
        })
    }

    /// Returns the address in the original for an address in a copy; `None` for other code. `users` counts the users
    /// that a walk has looked at.
    pub(super) fn original(
        &self,
        at: GuestVirtAddr,
        users: &mut u32,
        kernel: &mut ReadWord<'_>,
    ) -> Option<GuestVirtAddr> {
        let mut link = self.list;
        while *users < MAX_USERS {
            *users += 1;
            let user = GuestVirtAddr(kernel(link)?);
            if user.0 == 0 {
                return None;
            }
            let mut member = |offset| kernel(user.wrapping_add(offset));
            let (start, len) = (GuestVirtAddr(member(self.start)?), member(self.len)?);
            if let Some(offset) = at.offset_from(start).filter(|offset| *offset < len) {
                let copied = match member(self.flags)? & SAVE_REGS {
                    0 => self.caller,
                    _ => self.regs_caller,
                };
                return Some(copied.wrapping_add(offset));
            }
            link = user.wrapping_add(self.next);
        }
        None
    }
}
