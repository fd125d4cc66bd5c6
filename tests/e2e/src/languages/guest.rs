//! The tiny guest for clients in other languages: it has what they look at.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, al, dx, rdi};

use crate::test::Failure;
use crate::tiny::image::{self, COM1};

/// A function that the guest calls all the time. RDI is one more at each call.
pub const FUNCTION: &str = "body";
/// A type of the guest's kernel.
pub const TYPE: &str = "struct point";
/// The input at which the guest switches itself off. It echoes each of these bytes.
pub const INPUT: &str = "off!";

/// The kernel.
///
/// # Errors
/// None that this code can cause.
pub fn kernel() -> Result<Vec<u8>, Failure> {
    let types = types();
    Ok(image::build(|a, names| {
        let (mut again, mut body, mut end) = (a.create_label(), a.create_label(), a.create_label());
        a.xor(rdi, rdi)?;
        a.set_label(&mut again)?;
        a.inc(rdi)?;
        a.call(body)?;
        is_input(a)?;
        a.jz(again)?;
        a.mov(dx, u32::from(COM1))?;
        a.in_(al, dx)?;
        a.out(dx, al)?;
        a.cmp(al, i32::from(b'!'))?;
        a.je(end)?;
        a.jmp(again)?;
        a.set_label(&mut end)?;
        image::power_off(a)?;
        a.set_label(&mut body)?;
        a.nop()?;
        // An instruction has one label at most.
        names.here(a, FUNCTION)?;
        a.nop()?;
        a.nop()?;
        a.ret()?;
        // include/asm-generic/vmlinux.lds.h, BTF
        names.here(a, "__start_BTF")?;
        a.db(&types)?;
        names.here(a, "__stop_BTF")?;
        a.nop()
    })?)
}

/// Clears ZF if a byte waits at the serial port.
fn is_input(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dx, u32::from(COM1 + 5))?;
    a.in_(al, dx)?;
    a.test(al, 1)
}

/// A BTF section with `int` and `struct point { int x; int y; }` (include/uapi/linux/btf.h).
fn types() -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const STRUCT: u32 = 4 << 24;
    const SIGNED: u32 = 1 << 24;
    let names = b"\0int\0point\0x\0y\0";
    let [int, point, x, y] = [1, 5, 11, 13];
    let types = [
        // A name, the kind with the number of members, the size in bytes, and what this kind has besides.
        &[int, INT, 4, SIGNED | 32][..],
        // Each member: its name, its type's number, its offset in bits.
        &[point, STRUCT | 2, 8, x, 1, 0, y, 1, 32],
    ]
    .concat();
    let (header, types_len, names_len) = (24, types.len() as u32 * 4, names.len() as u32);
    // The magic number, version 1, no flags; then where types and names are behind the header.
    let magic = 0x0001_eb9f;
    let head = [magic, header, 0, types_len, types_len, names_len];
    let words = head.into_iter().chain(types);
    let mut section: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    section.extend(names);
    section
}
