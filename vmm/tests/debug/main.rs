//! The monitor's debugging of guests: int3s, steps and watchpoints, in tiny guests on
//! this machine's KVM. A part is skipped only where the doctor finds that this
//! KVM lacks what it needs; all of it runs in the lab.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::redundant_closure_for_method_calls
)]

mod control;
mod own_int3;
mod panics;
mod report;
mod steps;
mod tiny;
mod watchpoints;
