//! The text form of a probe, in the manner of the kernel's `kprobe_events`
//! (`Documentation/trace/kprobetrace.rst`).
//!
//! | form | means |
//! | --- | --- |
//! | `vfs_read` | the function's first instruction behind its ftrace site |
//! | `vfs_read+0x15`, `vfs_read+21` | so many bytes from the symbol |
//! | `0xffffffff812f0c15` | an address |
//! | `ext4:ext4_sync_file` | a symbol of a module, which need not be loaded yet |
//! | `open=do_sys_openat2` | a name for the probe, before any place |
//! | `p:open do_sys_openat2`, `p:fs/open do_sys_openat2` | the same in the kernel's form |
//! | `vfs_read%return`, `r vfs_read`, `r:done vfs_read` | a return probe |
//! | `r64 vfs_read` | one that follows 64 calls at the same time |
//! | `w jiffies`, `w:tick jiffies` | a watchpoint: writes to the 8 bytes there |
//! | `w jiffies/4:rw`, `w 0xffffffff82a05940/1` | so many bytes; reads and writes |
//!
//! Words behind the place: `post` and `fault` ask for those events of an instruction probe as well;
//! `disabled` registers any probe without arming it.
//!
//! A watchpoint's `/LENGTH:ACCESS` is that of `perf record -e mem:ADDRESS/LENGTH:ACCESS`. What ends
//! in `:w` or `:rw` ends in the access, so a module's symbol of such a name needs one more: `m:rw:w`.

#![forbid(unsafe_code)]

mod cmdline;
mod definition;
mod reader;

use thiserror::Error;
use vmprobe_proto::v1::ProbeSpec;

pub use cmdline::from_cmdline;
pub use definition::definition;

/// Most calls that a return probe may follow at the same time, as in the kernel
/// (`KRETPROBE_MAXACTIVE_MAX` in `kernel/trace/trace_kprobe.c`).
pub const MAXACTIVE_MAX: u32 = 4096;

/// Where and why the text of a probe can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("bad probe `{text}`, column {column}: {reason}")]
pub struct SpecError {
    /// The whole text.
    pub text: String,
    /// Column of the first character that is wrong, from 1; one past the end when something is
    /// missing there.
    pub column: usize,
    /// What is wrong, and what belongs there.
    pub reason: String,
}

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
