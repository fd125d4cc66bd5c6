//! Getting past a probed instruction by doing its work here.
//!
//! `compile` turns a decoded instruction into a `Compiled` once, when the probe
//! is registered; `run` carries that out at every hit. It either does all
//! of the instruction or none of it: it writes memory at most once, after
//! everything that can fail, and the registers last.
//!
//! Only 64-bit code at privilege level 0 is done here. What a real CPU also
//! does and this doesn't: guest data breakpoints (DR0 to DR3) and a guest's own
//! trap flag don't trigger on an emulated instruction, an emulated indirect
//! branch doesn't demand an `endbr64` at its target, and shadow stacks (which
//! Linux doesn't use in kernel mode) aren't kept.

mod compile;
mod compiled;
mod flags;
mod run;
mod touched;

pub(crate) use compile::compile;
pub(crate) use compiled::Compiled;
pub use run::Outcome;
pub(crate) use run::run;
pub(crate) use touched::{OnlyCpuKnows, Touched};

use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::insn::decode;

/// Emulates the one instruction that `code` begins with, as if it were at RIP. `None` when it isn't
/// an emulated one.
pub fn once(code: &[u8], memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Option<Outcome> {
    let code = decode(code, GuestVirtAddr(vcpu.registers().rip)).ok()?;
    let compiled = compile(&code.insn, code.prefixes).ok()?;
    Some(run(&compiled, memory, vcpu))
}

#[cfg(test)]
mod tests;
