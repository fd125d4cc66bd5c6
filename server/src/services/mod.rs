//! One file for each gRPC service.

mod console;
mod debug;
mod event;
mod hit;
mod probe;
mod session;
mod symbol;
mod vm;

pub use console::Consoles;
pub use debug::Debuggers;
pub use event::Events;
pub use hit::Hits;
pub use probe::Probes;
pub use session::Sessions;
pub use symbol::Symbols;
pub use vm::Vms;
