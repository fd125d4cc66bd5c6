//! A guest whose instructions are all probed.

use iced_x86::IcedError;
use iced_x86::code_asm::{r8, rbx};

/// Name of the first site.
const SITES: &str = "sites";

/// Builds a kernel that executes all sites in turn, `rounds` times, and switches itself off. The sites are `push` and
/// `pop` of a register, as at most functions' entries, one byte each.
///
/// # Errors
/// None that this code can cause.
pub fn kernel(sites: usize, rounds: usize) -> Result<Vec<u8>, IcedError> {
    tiny_kernel::build(|a, names| {
        let mut again = a.create_label();
        a.mov(r8, rounds as u64)?;
        a.set_label(&mut again)?;
        a.nop()?;
        names.here(a, SITES)?;
        for _ in 0..sites / 2 {
            a.push(rbx)?;
            a.pop(rbx)?;
        }
        a.dec(r8)?;
        a.jnz(again)?;
        tiny_kernel::power_off(a)
    })
}

/// The probe of a site.
pub fn site(index: usize) -> String {
    format!("p {SITES}+{index}")
}
