//! What probes cost, measured without a guest that runs: the engine alone, on Debian's kernels
//! unpacked into memory.
//!
//! The cost of a hit or a stop in a guest is measured by `e2e bench`, in the lab or on this
//! machine; `make bench` runs both.

pub mod clock;
pub mod criterion_means;
pub mod exits;
pub mod fate;
pub mod fleet;
pub mod functions;
pub mod guest;
pub mod hits;
pub mod image;
pub mod in_process;
pub mod jump;
pub mod jump_shares;
pub mod latency;
pub mod pause;
pub mod relay;
pub mod report;
pub mod rings;
pub mod scenario;
pub mod shares;
pub mod sinks;
pub mod start;
pub mod stops;
pub mod stream;
pub mod watch;
