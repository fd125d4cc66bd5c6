//! One vCPU: its thread, its exits, and the traps among them.

pub(crate) mod kick;
mod kvm_vcpu;
mod run;
mod shared;
mod step_timer;
mod thread;

pub(crate) use kvm_vcpu::KvmVcpu;
pub(crate) use shared::Shared;
pub(crate) use thread::{run_thread, run_until_paused};
