//! Tests with guests of a few hundred bytes, assembled here and booted as any vmlinux by the
//! product's own server. They prove on any real KVM what needs no Linux.

pub mod actions;
mod debugger;
mod faults;
pub mod held;
pub mod interrupts;
mod memory;
mod missed;
mod pages;
mod pause;
mod privileged;
mod probes;
mod serial;
pub mod sessions;
mod single;
mod smp;
mod system;
mod traps;
pub mod unpack;
pub mod vm;
mod watch;

pub use tiny_kernel as image;

use crate::test::{Failure, Test};

/// The tests.
pub const TESTS: &[Test] = &[
    serial::POWER_OFF,
    serial::RESET,
    serial::TRIPLE_FAULT,
    serial::ECHO,
    memory::SMALL,
    memory::LARGE,
    memory::REGISTERS,
    pause::PORTS,
    probes::EMULATED,
    probes::STEPPED,
    probes::SAME_PLACE,
    probes::FOREIGN,
    probes::STREAM_LEFT,
    missed::TAKEN_AWAY,
    pages::PROBES,
    traps::SHAPES,
    privileged::FLAGS,
    privileged::INTERRUPTS,
    privileged::HALT,
    privileged::BRANCHES,
    smp::ALL,
    unpack::MOVED,
    unpack::FAILED,
    single::PRIVILEGED,
    single::TRAP_FLAG,
    single::REPEATED,
    system::LOADS,
    watch::SIZES,
    sessions::SHARED,
    sessions::CUT_OFF,
    sessions::RESUMED,
    faults::ENDED,
    faults::FILES,
    faults::STEPPED,
    debugger::SESSION,
    debugger::GDB,
];

/// A kernel that switches itself off.
///
/// # Errors
/// None that this code can cause.
pub fn power_off_image() -> Result<Vec<u8>, Failure> {
    Ok(image::build(|a, _| image::power_off(a))?)
}
