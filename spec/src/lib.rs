//! The text form of a probe, in the manner of the kernel's `kprobe_events`
//! (`Documentation/trace/kprobetrace.rst`).
//!
//! | form | means |
//! | --- | --- |
//! | `vfs_read` | the function's first instruction behind its ftrace site |
//! | `vfs_read+0x15`, `vfs_read+21` | that many bytes from the symbol |
//! | `0xffffffff812f0c15` | an address |
//! | `ext4:ext4_sync_file` | a symbol of a module, which need not be loaded yet |
//! | `open=do_sys_openat2` | a name for the probe, before any place |
//! | `p:open do_sys_openat2`, `p:fs/open do_sys_openat2` | the same in the kernel's form |
//! | `vfs_read%return`, `r vfs_read`, `r:done vfs_read` | a return probe |
//! | `r64 vfs_read` | one that follows 64 calls at the same time |
//! | `w jiffies`, `w:tick jiffies` | a watchpoint: writes to the 8 bytes there |
//! | `w jiffies/4:rw`, `w 0xffffffff82a05940/1` | that many bytes; reads and writes |
//!
//! | `p tcp_*`, `r ext4_*` | all functions that match: `*` is any text, `?` one character |
//! | `-:open` | removes the probe of that name ([`definitions`] only) |
//!
//! A name is a name of C, or `GROUP/EVENT` as the kernel has it. Without a group it may have dots and
//! hyphens, too.
//!
//! Behind the place are words, in any order: arguments and options. At the end may be a filter.
//!
//! # Arguments
//! Values that each event has, as the kernel has them ([`argument`]):
//!
//! | word | is |
//! | --- | --- |
//! | `%di` | a register: `ax`, `bx`, `cx`, `dx`, `si`, `di`, `bp`, `sp`, `r8` to `r15`, `ip`, `flags` |
//! | `$arg1`, `$arg*` | an argument of the function, all of them; at its entry or return |
//! | `$retval` | what it returns; at its return |
//! | `count`, `file->f_inode->i_ino` | a parameter by its name in C, and members behind it |
//! | `$stack`, `$stack3` | the stack's address, a word of it |
//! | `$comm` | the current task's name |
//! | `@jiffies`, `@init_task+16`, `@0xffffffff82a05940` | what is in memory there |
//! | `+8(%di)`, `-8(+0($arg1))`, `+u0($arg2)` | what is in memory there; `u` for the process's |
//! | `\42`, `\"text"` | a number, a text without spaces |
//!
//! Each may have a name before it, `name=$arg2`, and a type behind it, `$arg2:x32`: `u8` to `u64`, `s8` to
//! `s64`, `x8` to `x64`, `char`, `string`, `ustring` (the process's), `symbol`, `symstr`, or
//! `b4@8/32` for 4 bits from bit 8 of 32; `[4]` behind it for an array. An argument or a returned value that
//! is a `string` or a `ustring` points to it: `$arg2:ustring` means `+0($arg2):ustring`.
//!
//! The kernel's limits apply: 128 arguments, 63 bytes each and 32 of its name. A word that is an option
//! is no argument: for a parameter called `count`, write `count=count`.
//!
//! # Options
//! `post` and `fault` ask for those events of an instruction probe as well; `rets` has a return probe
//! wait at the function's own `ret`s, with its return address left alone; `disabled` registers any probe
//! without arming it. What its hits are wanted for:
//!
//! | word | means |
//! | --- | --- |
//! | `stack`, `stack=32` | events have the return addresses on the stack, at most 16 or the given number |
//! | `count` | hits are counted, without events |
//! | `regs=rdi+rsi` | events have these registers only; `regs=none` for none |
//! | `if=edi==0xffffff9c&&pid==100` | only hits that meet all of these; `if=` may be repeated |
//! | `lossless` | a vCPU whose ring is full waits, instead of losing a jump's record |
//! | `nojump` | the probe stays a breakpoint |
//!
//! # Filters
//! All that is behind the word `if` is a [`filter`] on the arguments and on `comm`, `pid`, `tgid` and `cpu`:
//! `p:open do_sys_openat2 dfd if dfd == -100 && comm == "sh"`. Hits that don't meet it are as if they had
//! not happened.
//!
//! # Conditions
//! A condition compares a register by its name of any width (`rdi`, `edi`, `di`, `dil`), `cpu`, `pid`
//! or `tgid` with a number, by `==`, `!=`, `<`, `<=`, `>`, `>=`, or `&` (they have a bit in common).
//! Both are unsigned unless the number is negative (`edi==-100`, `rax<-1`) or the relation ends in
//! `s`: `eax>s0`.
//!
//! A watchpoint's `/LENGTH:ACCESS` is that of `perf record -e mem:ADDRESS/LENGTH:ACCESS`. What ends
//! in `:w` or `:rw` ends in the access, so a module's symbol of such a name needs one more: `m:rw:w`.

#![forbid(unsafe_code)]

pub mod actions;
pub mod argument;
mod cmdline;
mod definition;
mod error;
mod file;
pub mod filter;
mod limits;
pub mod names;
mod piece;
mod reader;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use vmprobe_proto::v1::ProbeSpec;

pub use cmdline::from_cmdline;
pub use definition::{
    condition_text, definition, is_enabled, may_optimize, option_words, register_names,
};
pub use error::{SpecError, render};
pub use file::{Command, definitions};
pub use limits::{ARGUMENTS_MAX, CONDITIONS_MAX, MAXACTIVE_MAX, STACK_DEFAULT, STACK_MAX};
pub use reader::is_pattern;

use reader::WrongAt;

/// Reads one probe. Its `kind` is always set.
///
/// ```
/// use vmprobe_spec::{definition, parse};
///
/// let spec = parse("done=vfs_read%return")?;
/// assert_eq!(definition(&spec), "r:done vfs_read");
/// # Ok::<(), vmprobe_spec::SpecError>(())
/// ```
///
/// # Errors
/// [`SpecError`] with the column of the first character that doesn't fit.
pub fn parse(text: &str) -> Result<ProbeSpec, SpecError> {
    reader::read(text)
}
