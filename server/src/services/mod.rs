//! One file for each gRPC service.

mod console;
mod event;
mod hit;
mod host;
mod probe;
mod symbol;
mod vm;

pub use console::Consoles;
pub use event::Events;
pub use hit::Hits;
pub use host::Host;
pub use probe::Probes;
pub use symbol::Symbols;
pub use vm::Vms;
