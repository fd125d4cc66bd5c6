//! Events from their probes to a writer: which probes are asked for, what they and their addresses are
//! called, and when it ends.

mod definitions;
mod fleet;
mod fleet_lines;
mod fleet_records;
mod functions;
mod lines;
mod names;
mod progress;
mod register;
mod session;

pub use definitions::{Definition, Wanted};
pub use fleet::{FleetEvents, FleetTrace, follow_fleet, of};
pub use fleet_lines::FleetLines;
pub use fleet_records::{FleetJson, VmRecorder};
pub use functions::{Function, functions};
pub use lines::TraceLines;
pub use names::{EventNames, place};
pub use register::{name_all, register_as_asked};
pub use session::{deliver, follow};
