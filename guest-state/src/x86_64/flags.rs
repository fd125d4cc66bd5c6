//! Bits of RFLAGS.
//!
//! Source: Intel SDM vol. 1, 3.4.3.

/// Carry.
pub const CF: u64 = 1 << 0;
/// Parity.
pub const PF: u64 = 1 << 2;
/// Auxiliary carry.
pub const AF: u64 = 1 << 4;
/// Zero.
pub const ZF: u64 = 1 << 6;
/// Sign.
pub const SF: u64 = 1 << 7;
/// Trap: single steps.
pub const TF: u64 = 1 << 8;
/// Interrupts are taken.
pub const IF: u64 = 1 << 9;
/// Direction of string instructions.
pub const DF: u64 = 1 << 10;
/// Overflow.
pub const OF: u64 = 1 << 11;
/// The privilege level that may use ports.
pub const IOPL: u64 = 3 << 12;
/// Nested task.
pub const NT: u64 = 1 << 14;
/// Resume: the next instruction raises no instruction breakpoint.
pub const RF: u64 = 1 << 16;
/// Virtual-8086 mode.
pub const VM: u64 = 1 << 17;
/// Alignment check; in supervisor mode, access to users' pages despite SMAP.
pub const AC: u64 = 1 << 18;
/// `cpuid` exists.
pub const ID: u64 = 1 << 21;
