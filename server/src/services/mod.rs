//! One file for each gRPC service.

mod console;
mod debug;
mod event;
mod hit;
mod host;
mod probe;
mod symbol;
mod vm;

pub use console::Consoles;
pub use debug::Debuggers;
pub use event::Events;
pub use hit::Hits;
pub use host::Host;
pub use probe::Probes;
pub use symbol::Symbols;
pub use vm::Vms;
