//! A debugger of the guest: where vCPUs stop for it, and what one of them executes for it.
//!
//! Its breakpoints are probes like others. A vCPU that comes to one stays in front of the instruction, and the guest is
//! paused. Nothing is remembered of that: when the vCPU goes on, it executes what is there then, the breakpoint again
//! unless the debugger has removed it. So a debugger that has gone leaves nothing behind but its probes.

pub(crate) mod state;
mod step;
mod stop;
