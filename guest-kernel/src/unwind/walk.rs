//! The walk from a function to its callers.

use guest_state::{GuestVirtAddr, Registers};

use super::entry::{Base, FrameType, OrcEntry};
use super::pt_regs::{self, Came, Interrupted, Whole};
use super::replaced::Cursors;
use super::trace::{Foreign, MAX_FRAMES, StackTrace, Surroundings, TraceEnd};
use super::unwinder::Unwinder;

/// The longest stack of a kernel in bytes: 16 KiB, twice that under KASAN
/// (`arch/x86/include/asm/page_64_types.h`). Callers further away are on another stack.
const STACK_LEN: u64 = 32 << 10;
/// How often a trace may go to another stack: a CPU has one for tasks, interrupts and entries, and one for
/// each of six exceptions (`enum stack_type` in `arch/x86/include/asm/stacktrace.h`,
/// `enum exception_stack_ordering` in `arch/x86/include/asm/cpu_entry_area.h`).
const MAX_SWITCHES: u32 = 8;
/// How many times in a row an address may stand for another one: for example a trampoline of the kernel's and one from
/// outside.
const MAX_REPLACED: usize = 6;

/// A word of the stack.
const WORD: u64 = 8;

impl Unwinder {
    /// Returns the callers of code in the kernel with the registers `start`, innermost first. The trace has at most
    /// `frames` addresses with the code's own, and never more than [`MAX_FRAMES`].
    ///
    /// Always ends: a stack is walked upwards, and only a few times from one stack to another.
    pub fn unwind(&self, start: &Registers, around: Surroundings<'_>, frames: usize) -> StackTrace {
        Walk::new(self, start, around).trace(frames)
    }
}

/// Where a walk has come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) ip: GuestVirtAddr,
    pub(super) sp: GuestVirtAddr,
    pub(super) bp: GuestVirtAddr,
    /// True if `ip` is the instruction that comes next, rather than where a call returns to.
    pub(super) signal: bool,
    pub(super) interrupted: Interrupted,
}

/// A walk under way.
pub(super) struct Walk<'a, 'b> {
    pub(super) unwinder: &'a Unwinder,
    pub(super) around: Surroundings<'b>,
    pub(super) at: Place,
    cursors: Cursors,
    ftrace_users: u32,
    switches: u32,
    pub(super) guessed: bool,
}

impl<'a, 'b> Walk<'a, 'b> {
    pub(super) fn new(unwinder: &'a Unwinder, start: &Registers, around: Surroundings<'b>) -> Self {
        let mut walk = Self {
            unwinder,
            around,
            at: Place {
                ip: GuestVirtAddr(start.rip),
                sp: GuestVirtAddr(start.rsp),
                bp: GuestVirtAddr(start.rbp),
                signal: true,
                interrupted: Interrupted::Whole(Whole::Known(*start)),
            },
            cursors: Cursors::default(),
            ftrace_users: 0,
            switches: 0,
            guessed: false,
        };
        let before = walk.before(walk.at.ip, walk.at.sp);
        (walk.at.ip, walk.at.sp) = (before.ip, before.sp);
        if !before.has_registers {
            walk.at.interrupted = Interrupted::No;
        }
        walk
    }

    /// Returns the whole trace.
    pub(super) fn trace(mut self, frames: usize) -> StackTrace {
        let frames = frames.min(MAX_FRAMES);
        let mut addresses = Vec::new();
        let end = loop {
            if addresses.len() == frames {
                break TraceEnd::Full;
            }
            addresses.push(self.at.ip);
            let next = if self.unwinder.has_orc() {
                self.by_orc()
            } else {
                self.by_frame_pointer()
            };
            if let Err(end) = next {
                break end;
            }
            if !self.unwinder.is_text(self.at.ip) {
                break TraceEnd::NotText;
            }
        };
        StackTrace {
            addresses,
            end,
            guessed: self.guessed,
        }
    }

    /// Goes to the caller by what the tables say (`unwind_next_frame` in `arch/x86/kernel/unwind_orc.c`).
    fn by_orc(&mut self) -> Result<(), TraceEnd> {
        // The entry of the call itself describes the stack. Behind a call that never returns is another function's
        // code.
        let looked_up = if self.at.signal {
            self.at.ip
        } else {
            self.at.ip.wrapping_add(u64::MAX)
        };
        let entry = self.entry(looked_up);
        match entry.frame {
            FrameType::Undefined | FrameType::Unknown => return Err(TraceEnd::NoEntry),
            FrameType::EndOfStack => return Err(TraceEnd::Complete),
            FrameType::Call | FrameType::Registers | FrameType::PartialRegisters => {}
        }
        let found = self.previous_sp(entry)?;
        let mut next = Place {
            signal: entry.signal,
            ..self.at
        };
        match entry.frame {
            FrameType::Registers => {
                next.interrupted = match self.came(found, &mut next)? {
                    true => Interrupted::Whole(Whole::At(found)),
                    false => Interrupted::Inserted(found),
                };
            }
            FrameType::PartialRegisters => {
                next.interrupted = match self.came(pt_regs::of_partial(found), &mut next)? {
                    true => self.at.interrupted.partly(),
                    false => Interrupted::No,
                };
            }
            _ => {
                let slot = found.wrapping_add(WORD.wrapping_neg());
                next.ip = self.returned(slot)?;
                next.sp = found;
                next.interrupted = Interrupted::No;
            }
        }
        let offset = i64::from(entry.bp_offset).cast_unsigned();
        match entry.bp {
            Base::Undefined => {
                let rbp = next.interrupted.rbp(self.around.memory);
                if let Some(rbp) = rbp.ok_or(TraceEnd::NotThere)? {
                    next.bp = GuestVirtAddr(rbp);
                }
            }
            Base::PreviousSp => next.bp = self.address(found.wrapping_add(offset))?,
            Base::Bp => next.bp = self.address(self.at.bp.wrapping_add(offset))?,
            _ => return Err(TraceEnd::NoEntry),
        }
        self.go(next)
    }

    fn entry(&mut self, at: GuestVirtAddr) -> OrcEntry {
        // Where a null pointer was called, its caller's address is still at RSP (`null_orc_entry`).
        if at.0 == 0 {
            return OrcEntry::CALLED;
        }
        let of_tables = self.unwinder.find(at);
        of_tables.or_else(|| self.of_copied(at)).unwrap_or_else(|| {
            self.guessed = true;
            OrcEntry::FRAME_POINTER
        })
    }

    /// Returns what the tables say of the original of code that ftrace has copied.
    fn of_copied(&mut self, at: GuestVirtAddr) -> Option<OrcEntry> {
        let trampolines = self.unwinder.ftrace?;
        let original = trampolines.original(at, &mut self.ftrace_users, self.around.kernel)?;
        self.unwinder.find(original)
    }

    /// Returns the caller's stack pointer, or where the registers of the interrupted code are.
    fn previous_sp(&mut self, entry: OrcEntry) -> Result<GuestVirtAddr, TraceEnd> {
        let offset = i64::from(entry.sp_offset).cast_unsigned();
        Ok(match entry.sp {
            Base::Sp => self.at.sp.wrapping_add(offset),
            Base::Bp => self.at.bp.wrapping_add(offset),
            Base::SpIndirect => self.address(self.at.sp)?.wrapping_add(offset),
            Base::BpIndirect => self.address(self.at.bp.wrapping_add(offset))?,
            Base::Register(register) => {
                let value = self.at.interrupted.register(register, self.around.memory);
                GuestVirtAddr(value.ok_or(TraceEnd::NoRegister)?)
            }
            Base::Undefined | Base::PreviousSp | Base::Unknown => return Err(TraceEnd::NoEntry),
        })
    }

    /// Sets `next` to the code that an interrupt came into, by the `struct pt_regs` at an address. Returns true if the
    /// registers there are the kernel's.
    ///
    /// # Errors
    /// The `struct pt_regs` can't be read, or the interrupt came into user space.
    pub(super) fn came(&mut self, regs: GuestVirtAddr, next: &mut Place) -> Result<bool, TraceEnd> {
        let came = Came::read(regs, self.around.memory).ok_or(TraceEnd::NotThere)?;
        if came.user {
            return Err(TraceEnd::Complete);
        }
        let before = self.before(came.rip, came.rsp);
        (next.ip, next.sp) = (before.ip, before.sp);
        Ok(before.has_registers)
    }

    /// Goes on from a place, if the stack makes sense there.
    pub(super) fn go(&mut self, next: Place) -> Result<(), TraceEnd> {
        let grown = next.sp.0.wrapping_sub(self.at.sp.0);
        if !(1..=STACK_LEN).contains(&grown) {
            self.switches += 1;
            if self.switches > MAX_SWITCHES {
                return Err(TraceEnd::Circular);
            }
        }
        self.at = next;
        Ok(())
    }

    /// Reads an address from the stack.
    pub(super) fn address(&mut self, at: GuestVirtAddr) -> Result<GuestVirtAddr, TraceEnd> {
        let value = (self.around.memory)(at).ok_or(TraceEnd::NotThere)?;
        Ok(GuestVirtAddr(value))
    }

    /// Reads the return address at a place of the stack, as the caller pushed it.
    pub(super) fn returned(&mut self, slot: GuestVirtAddr) -> Result<GuestVirtAddr, TraceEnd> {
        let address = self.address(slot)?;
        Ok(self.before(address, slot.wrapping_add(WORD)).ip)
    }

    /// Returns where code at `ip` with this stack pointer would be if nothing had been inserted or replaced.
    fn before(&mut self, ip: GuestVirtAddr, sp: GuestVirtAddr) -> Before {
        let mut before = Before {
            ip,
            sp,
            has_registers: true,
        };
        for _ in 0..MAX_REPLACED {
            // Right behind a return, the return address is still below the stack pointer.
            let slot = before.sp.wrapping_add(WORD.wrapping_neg());
            match (self.around.foreign)(before.ip, slot, self.around.memory) {
                Some(Foreign::Copy { original, pushed }) => {
                    before.ip = original;
                    before.sp = before.sp.wrapping_add(pushed);
                }
                Some(Foreign::Inserted { original, sp }) => {
                    before = Before {
                        ip: original,
                        sp,
                        has_registers: false,
                    };
                }
                Some(Foreign::Returned { original }) => before.ip = original,
                None => {
                    let replaced = &self.unwinder.replaced;
                    let (task, memory) = (self.around.task, &mut *self.around.memory);
                    match replaced.recover(before.ip, slot, task, &mut self.cursors, memory) {
                        Some(original) => before.ip = original,
                        None => break,
                    }
                }
            }
        }
        before
    }
}

/// A place in the kernel's code, as if nothing had been inserted or replaced.
struct Before {
    ip: GuestVirtAddr,
    sp: GuestVirtAddr,
    /// True if the registers are those that the kernel's code had there.
    has_registers: bool,
}
