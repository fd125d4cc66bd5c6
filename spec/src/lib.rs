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
//! Words behind the place: `post` and `fault` ask for those events of an instruction probe as well;
//! `rets` has a return probe wait at the function's own `ret`s, with its return address left alone;
//! `disabled` registers any probe without arming it. What its hits are wanted for:
//!
//! | word | means |
//! | --- | --- |
//! | `count` | hits are counted, without events |
//! | `regs=rdi+rsi` | events have these registers only; `regs=none` for none |
//! | `if=edi==0xffffff9c&&pid==100` | only hits that meet all of these; `if=` may be repeated |
//! | `lossless` | a vCPU whose ring is full waits, instead of losing a jump's record |
//! | `nojump` | the probe stays a breakpoint |
//!
//! A condition compares a register by its name of any width (`rdi`, `edi`, `di`, `dil`), `cpu`, `pid`
//! or `tgid` with a number, by `==`, `!=`, `<`, `<=`, `>`, `>=`, or `&` (they have a bit in common).
//! Both are unsigned unless the number is negative (`edi==-100`, `rax<-1`) or the relation ends in
//! `s`: `eax>s0`.
//!
//! A watchpoint's `/LENGTH:ACCESS` is that of `perf record -e mem:ADDRESS/LENGTH:ACCESS`. What ends
//! in `:w` or `:rw` ends in the access, so a module's symbol of such a name needs one more: `m:rw:w`.

#![forbid(unsafe_code)]

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
