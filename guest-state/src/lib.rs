//! The vocabulary that a monitor and a debugger share: addresses, registers, memory, traps of a guest.
//!
//! The monitor implements [`GuestMemory`], [`Vcpu`] and [`StoppedGuest`], and calls a
//! [`TrapHandler`]; the debugger implements that, and uses the others. Nothing here does I/O.
#![forbid(unsafe_code)]

mod addr;
mod debugging;
mod memory;
mod stopped;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trap;
mod vcpu;
pub mod x86_64;

pub use addr::{GuestPhysAddr, GuestVirtAddr, PhysRange, Tsc, VcpuId};
pub use debugging::{Access, Debugging, DebuggingError, Watchpoint};
pub use memory::{GuestMemory, MemoryError};
pub use stopped::{ArenaMemory, Segment, StoppedGuest};
pub use trap::{Action, ExceptionHandler, Step, StepEnd, Trap, TrapHandler, WatchpointSet};
pub use vcpu::{Vcpu, VcpuError};
pub use x86_64::control::ControlRegisters;
pub use x86_64::registers::Registers;
