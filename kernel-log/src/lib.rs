//! What a kernel says on its console.
//!
//! A console is bytes that a guest chooses, so nothing here trusts them: each line, each report and each list
//! of results has a bound, and no bytes make a function here fail.
//!
//! - [`Lines`] makes lines of bytes.
//! - [`Line`] takes the prefix off a line that the kernel's log puts there.
//! - [`Reports`] finds the reports of a kernel that something is wrong with: an oops, a panic, a stall, what a
//!   checker such as KASAN or lockdep has found.
//! - [`ktap`] reads the results of tests: of `KUnit` and of kselftest.
//!
//! The formats are those of Linux 5.4 to 6.19 on x86-64. Each fact names the kernel's file that it is from.
//!
//! ```
//! use vmprobe_kernel_log::{Kind, Lines, Reports};
//!
//! let mut lines = Lines::new();
//! let mut reports = Reports::new();
//! let console = b"[    1.500000] Kernel panic - not syncing: No working init found.\r\n\
//!                 [    1.500000] ---[ end Kernel panic - not syncing: No working init found. ]---\r\n";
//! let mut found = Vec::new();
//! for line in lines.push(console) {
//!     found.extend(reports.line(&line));
//! }
//! assert_eq!(found[0].kind, Kind::Panic);
//! assert_eq!(found[0].title, "Kernel panic - not syncing: No working init found.");
//! ```
#![forbid(unsafe_code)]

mod bound;
mod facts;
mod head;
mod kind;
pub mod ktap;
mod line;
mod lines;
mod report;
mod reports;
mod stack;

pub use kind::Kind;
pub use line::{Caller, Line};
pub use lines::{Lines, MAX_LINE};
pub use report::{MAX_FRAMES, MAX_REPORT_LINES, Report, Task};
pub use reports::Reports;
pub use stack::{Frame, Place};
