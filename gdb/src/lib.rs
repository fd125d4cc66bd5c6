//! gdb's remote protocol for the guests of a vmprobe server.
//!
//! A guest's vCPUs are gdb's threads, numbered from 1. They stop together and go on together. Breakpoints are the
//! server's, so gdb reads the guest's text as it is without them. The protocol itself is the work of `gdbstub`.

mod arch;
mod guest;
mod monitor;
mod serve;

pub use serve::{End, ServeError, serve};
