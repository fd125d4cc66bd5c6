//! What a jump has to know of the text around a probe.

use std::ops::Range;

use guest_kernel::blacklist::{Blacklist, Patched};
use guest_state::GuestVirtAddr;

use crate::probe::NoJump;

/// The kernel's functions that run, also after it has started, where they are mapped to physical
/// addresses or while GS base isn't that of the CPU's variables: when a CPU comes up
/// (`arch/x86/kernel/head_64.S`, `verify_cpu.S`, `sev_verify_cbit.S`, `cpu/common.c`), in kexec
/// (`relocate_kernel_64.S`), and when a suspended machine wakes up (`acpi/wakeup_64.S`,
/// Others are found by what they do, see [`super::gs`].
pub(super) const EARLY: [&str; 18] = [
    "__restore_processor_state",
    "common_startup_64",
    "do_suspend_lowlevel",
    "identity_mapped",
    "load_percpu_segment",
    "relocate_kernel",
    "restore_processor_state",
    "secondary_startup_64",
    "secondary_startup_64_no_verify",
    "sev_verify_cbit",
    "soft_restart_cpu",
    "start_cpu0",
    "startup_64",
    "swap_pages",
    "switch_gdt_and_percpu_base",
    "verify_cpu",
    "virtual_mapped",
    "wakeup_long64",
];

/// The text around a probe.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// The text as the guest has it without our probes, from the probed instruction to the function's
    /// end, or 64 bytes of it.
    pub text: &'a [u8],
    /// Where the symbol ends that the instruction belongs to.
    pub function_end: GuestVirtAddr,
    /// Whether these bytes are free: neither the kernel nor another probe has to do with them.
    pub is_free: &'a dyn Fn(Range<GuestVirtAddr>) -> Result<(), NoJump>,
    /// Whether the kernel has a fix-up for a fault of the instruction there.
    pub expects_fault: &'a dyn Fn(GuestVirtAddr) -> bool,
    /// Whether a branch leads to one of these addresses.
    pub is_target: &'a dyn Fn(Range<GuestVirtAddr>) -> bool,
    /// Whether the kernel goes on at one of these addresses after a fault that it expects. That is rare, so a tripwire
    /// will do where an instruction is; but the target of a fix-up isn't padding.
    pub is_fix_up: &'a dyn Fn(Range<GuestVirtAddr>) -> bool,
}

/// Returns `Ok` if a kernel that has started never changes these bytes, and allows probes there.
///
/// # Errors
/// The kernel changes them, or allows no probes there.
pub fn is_free(blacklist: &Blacklist, range: Range<GuestVirtAddr>) -> Result<(), NoJump> {
    let mut entries = blacklist.overlapping(range);
    match entries.find(|entry| entry.reason.patched() != Patched::Once) {
        None => Ok(()),
        Some(entry) => Err(NoJump::Taken {
            reason: entry.reason,
        }),
    }
}

/// Returns true if a function of the kernel runs before its CPU has the kernel's address space and variables. A jump
/// there would lead nowhere, or its detour wouldn't find that CPU's block. `symbol` is what its address resolves to.
pub fn is_early(symbol: &str) -> bool {
    EARLY.binary_search(&symbol).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_kernel::blacklist::{BlacklistEntry, Reason};

    #[test]
    fn text_that_is_patched_once_is_free_when_the_kernel_has_started() {
        let at = |offset: u64| GuestVirtAddr(0xffff_ffff_8100_0000 + offset);
        let entry = |offset, reason| BlacklistEntry {
            range: at(offset)..at(offset + 5),
            reason,
        };
        let entries = vec![
            entry(0, Reason::ReturnThunk),
            entry(0x10, Reason::JumpLabel),
            entry(0x10, Reason::Alternative),
            entry(0x20, Reason::Noinstr),
        ];
        let blacklist = Blacklist::new(entries).unwrap();
        let kind = |from, to| {
            let found = is_free(&blacklist, at(from)..at(to));
            found.map_err(|why| why.kind()).err()
        };
        assert_eq!(kind(0, 0x10), None);
        assert_eq!(kind(0, 0x11), Some("jump-label"));
        assert_eq!(kind(0x15, 0x20), None);
        assert_eq!(kind(0x24, 0x30), Some("noinstr"));
    }

    #[test]
    fn code_that_brings_a_cpu_up_is_told_by_its_name() {
        assert!(EARLY.is_sorted());
        assert!(is_early("secondary_startup_64") && is_early("common_startup_64"));
        assert!(!is_early("start_secondary"));
    }
}
