//! Conversions between the protocol's types and those of the engine and the monitor.

mod actions;
mod blacklist;
mod devices;
mod event;
mod no_jump;
mod options;
mod probe;
mod spec;
mod vcpu;
mod vm;

pub use actions::actions;
pub use blacklist::blacklist_kind;
pub use devices::devices;
pub use event::{event, registers};
pub use probe::{followed_call, is_settled, probes, symbol};
pub use spec::{check_batch, spec};
pub use vcpu::{general, vcpu_stack, vcpu_state};
pub use vm::{all_exits, arena, clock, ending, exits, memory_mib, ns, recent_stop, stops, streams};
