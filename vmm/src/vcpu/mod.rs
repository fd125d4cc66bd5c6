//! One vCPU: its thread, its exits, and the traps among them.

pub(crate) mod kick;
mod run;
mod shared;
mod state;
mod step_timer;
mod thread;

pub(crate) use shared::Shared;
pub(crate) use state::Vcpu;
pub(crate) use thread::run_thread;
