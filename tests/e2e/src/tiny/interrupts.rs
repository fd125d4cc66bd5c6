//! Interrupts in tiny kernels: gates, one that the vCPU sends to itself, and NMIs of the timer.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, al, ax, cs, dword_ptr, eax, ptr, rax, rdi, word_ptr,
};

use super::image::DATA;

/// Vector of [`interrupt_self`].
pub const VECTOR: u64 = 0x40;
/// Vector of an NMI (SDM vol. 3, 6.3.1).
pub const NMI: u64 = 2;
/// The table of gates (IDT), in the guest's data; its descriptor is behind it.
const TABLE: u64 = DATA;
const TABLE_SIZE: u32 = 0x1000;
/// Type and flags of a gate: present, for ring 0, interrupts off.
const PRESENT_INTERRUPT_GATE: u32 = 0x8e00;
/// The local APIC (SDM vol. 3, 11.4.1), and its registers by their offsets.
const APIC: u64 = 0xfee0_0000;
const END_OF_INTERRUPT: i32 = 0xb0;
const SPURIOUS: i32 = 0xf0;
const COMMAND: i32 = 0x300;
const LINT0: i32 = 0x350;
const TIMER: i32 = 0x320;
const TIMER_COUNT: i32 = 0x380;
const TIMER_DIVIDE: i32 = 0x3e0;
/// KVM's timer counts nanoseconds (arch/x86/kvm/lapic.h, `APIC_BUS_FREQUENCY`).
const TICK_CYCLES: i32 = 500_000;

/// Sets gates of the IDT (SDM vol. 3, 6.14.1: offset in three parts, selector, type). Changes
/// `rax`, `rdi`.
///
/// # Errors
/// None that this code can cause.
pub fn gates(a: &mut CodeAssembler, gates: &[(u64, CodeLabel)]) -> Result<(), IcedError> {
    for (vector, handler) in gates {
        a.lea(rax, ptr(*handler))?;
        a.mov(rdi, TABLE + vector * 16)?;
        a.mov(word_ptr(rdi), ax)?;
        a.mov(word_ptr(rdi + 2), cs)?;
        a.mov(word_ptr(rdi + 4), PRESENT_INTERRUPT_GATE)?;
        a.shr(rax, 16)?;
        a.mov(word_ptr(rdi + 6), ax)?;
        a.shr(rax, 16)?;
        a.mov(ptr(rdi + 8), eax)?;
    }
    // The table's descriptor: the offset of its last byte, and its address.
    a.mov(rdi, TABLE + u64::from(TABLE_SIZE))?;
    a.mov(word_ptr(rdi), TABLE_SIZE - 1)?;
    a.mov(rax, TABLE)?;
    a.mov(ptr(rdi + 2), rax)?;
    a.lidt(ptr(rdi))
}

/// Switches the local APIC on. Leaves its address in `rdi`, where the following functions expect
/// it.
///
/// # Errors
/// None that this code can cause.
pub fn enable_apic(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rdi, APIC)?;
    // The enable bit, and the vector of spurious interrupts.
    a.mov(dword_ptr(rdi + SPURIOUS), 0x1ff)
}

/// Requests an interrupt of this vCPU. It is pending with the next instruction. Changes nothing
/// else.
///
/// # Errors
/// None that this code can cause.
pub fn interrupt_self(a: &mut CodeAssembler) -> Result<(), IcedError> {
    // Destination shorthand "self", fixed delivery (SDM vol. 3, 11.6.1).
    a.mov(dword_ptr(rdi + COMMAND), 1 << 18 | VECTOR as i32)
}

/// Ends the interrupt's service, in its handler.
///
/// # Errors
/// None that this code can cause.
pub fn end_of_interrupt(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dword_ptr(rdi + END_OF_INTERRUPT), 0)
}

/// Lets the timer's line make NMIs: delivery mode 4 of the local APIC's LINT0.
///
/// # Errors
/// None that this code can cause.
pub fn timer_makes_nmis(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dword_ptr(rdi + LINT0), 4 << 8)
}

/// Masks the line again.
///
/// # Errors
/// None that this code can cause.
pub fn timer_makes_nothing(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dword_ptr(rdi + LINT0), 1 << 16)
}

/// Starts the timer (an 8254) anew for its longest time, 55 ms. Changes `al`.
///
/// # Errors
/// None that this code can cause.
pub fn start_timer(a: &mut CodeAssembler) -> Result<(), IcedError> {
    // Channel 0, both bytes of the count, mode 0: once.
    a.mov(al, 0x30)?;
    a.out(0x43, al)?;
    a.mov(al, 0)?;
    a.out(0x40, al)?;
    a.out(0x40, al)
}

/// Starts interrupts of [`VECTOR`] by the local APIC's timer, one after the other, a few hundred
/// microseconds apart (SDM vol. 3, 11.5.4).
///
/// # Errors
/// None that this code can cause.
pub fn start_ticks(a: &mut CodeAssembler) -> Result<(), IcedError> {
    // Divided by 1, periodic.
    a.mov(dword_ptr(rdi + TIMER_DIVIDE), 0xb)?;
    a.mov(dword_ptr(rdi + TIMER), 1 << 17 | VECTOR as i32)?;
    a.mov(dword_ptr(rdi + TIMER_COUNT), TICK_CYCLES)
}

/// As [`end_of_interrupt`], but needs no address in `rdi`.
///
/// # Errors
/// None that this code can cause.
pub fn end_of_interrupt_anywhere(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.push(rdi)?;
    a.mov(rdi, APIC)?;
    end_of_interrupt(a)?;
    a.pop(rdi)
}
