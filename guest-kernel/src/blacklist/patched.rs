//! What can't be probed in the kernel of an image.
//!
//! Source for the symbols around them: Linux `include/asm-generic/vmlinux.lds.h` and
//! `arch/x86/kernel/vmlinux.lds.S`. `.altinstr_replacement` holds no code that runs in place, and
//! the thunks that retpolines and returns lead to are ordinary code except for their alternatives.

use std::collections::HashSet;

use guest_state::GuestVirtAddr;

use super::format::{Format, Length, RawTable};
use super::tables::ImageTables;
use super::{Blacklist, BlacklistEntry, BlacklistError, Reason};

/// Text between two symbols.
const REGIONS: [(Reason, &str, &str); 6] = [
    (
        Reason::Noinstr,
        "__noinstr_text_start",
        "__noinstr_text_end",
    ),
    (Reason::EntryText, "__entry_text_start", "__entry_text_end"),
    (
        Reason::KprobesText,
        "__kprobes_text_start",
        "__kprobes_text_end",
    ),
    (
        Reason::StaticCallTrampoline,
        "__static_call_text_start",
        "__static_call_text_end",
    ),
    // `create_trampoline()` (arch/x86/kernel/ftrace.c) copies them as they are in memory.
    (Reason::CopiedText, "ftrace_caller", "ftrace_caller_end"),
    (
        Reason::CopiedText,
        "ftrace_regs_caller",
        "ftrace_regs_caller_end",
    ),
];

/// Functions that are copied as a whole: at kexec (`arch/x86/kernel/machine_kexec_64.c`) and when a
/// hibernated system is resumed (`arch/x86/power/hibernate.c`).
const COPIED: [&str; 2] = ["relocate_kernel", "core_restore_code"];

/// The calls that `ftrace_update_ftrace_func()` (`arch/x86/kernel/ftrace.c`) patches.
const FTRACE_CALLS: [&str; 2] = ["ftrace_call", "ftrace_regs_call"];
const CALL_LEN: u64 = 5;

/// Tables that only the blacklist needs, whose entries have one form in all kernels.
const TABLES: [(Reason, &str, &str, Format); 9] = [
    (
        Reason::FtraceSite,
        "__start_mcount_loc",
        "__stop_mcount_loc",
        Format::FTRACE,
    ),
    (
        Reason::StaticCall,
        "__start_static_call_sites",
        "__stop_static_call_sites",
        Format::STATIC_CALL,
    ),
    (
        Reason::SmpLock,
        "__smp_locks",
        "__smp_locks_end",
        Format::distances(Length::Fixed(1)),
    ),
    (
        Reason::Paravirt,
        "__parainstructions",
        "__parainstructions_end",
        Format::PARAVIRT,
    ),
    (
        Reason::Retpoline,
        "__retpoline_sites",
        "__retpoline_sites_end",
        Format::distances(Length::Instruction),
    ),
    (
        Reason::ReturnThunk,
        "__return_sites",
        "__return_sites_end",
        Format::distances(Length::Instruction),
    ),
    (
        Reason::CallThunk,
        "__call_sites",
        "__call_sites_end",
        Format::distances(Length::Instruction),
    ),
    (
        Reason::EndbrSeal,
        "__ibt_endbr_seal",
        "__ibt_endbr_seal_end",
        Format::distances(Length::Fixed(4)),
    ),
    // The preamble of a function: 16 bytes (`fineibt_preamble_size`).
    (
        Reason::Cfi,
        "__cfi_sites",
        "__cfi_sites_end",
        Format::distances(Length::Fixed(16)),
    ),
];

impl<'a> ImageTables<'a> {
    /// Returns what can't be probed in the kernel. A table that the kernel was built without has no entries. Takes some
    /// tens of milliseconds.
    ///
    /// # Errors
    /// See [`BlacklistError`].
    pub fn blacklist(&self) -> Result<Blacklist, BlacklistError> {
        let mut entries = Vec::new();
        self.regions(&mut entries);
        self.functions(&mut entries)?;
        for (reason, start, end, format) in TABLES {
            self.add(&mut entries, reason, self.find(start, end)?, &[format])?;
        }
        let (reason, formats) = (Reason::JumpLabel, [Format::JUMP_LABEL]);
        self.add(&mut entries, reason, self.jump_labels, &formats)?;
        let alternative = Format::alternative(self.btf);
        let alternatives = alternative.as_ref().map(std::slice::from_ref);
        self.add(
            &mut entries,
            Reason::Alternative,
            self.find("__alt_instructions", "__alt_instructions_end")?,
            alternatives.unwrap_or(&Format::ALTERNATIVES),
        )?;
        self.add(
            &mut entries,
            Reason::Bug,
            self.find("__start___bug_table", "__stop___bug_table")?,
            &[Format::bug(self.btf)],
        )?;
        self.constants(&mut entries)?;
        // Places outside of text can't be probed in any case.
        entries.retain(|entry| self.symbols.is_text(entry.range.start));
        Blacklist::new(entries)
    }

    /// Adds the places of a table, read by the first of these formats that fits.
    fn add(
        &self,
        entries: &mut Vec<BlacklistEntry>,
        reason: Reason,
        table: Option<RawTable<'a>>,
        formats: &[Format],
    ) -> Result<(), BlacklistError> {
        let Some(table) = table else {
            return Ok(());
        };
        let mut result = Ok(Vec::new());
        for format in formats {
            result = self.places(table, *format);
            if result.is_ok() {
                break;
            }
        }
        entries.extend(
            result?
                .into_iter()
                .map(|range| BlacklistEntry { range, reason }),
        );
        Ok(())
    }

    fn regions(&self, entries: &mut Vec<BlacklistEntry>) {
        for (reason, start, end) in REGIONS {
            if let Some(range) = self.range(start, end) {
                entries.push(BlacklistEntry { range, reason });
            }
        }
        for name in COPIED {
            if let Some(within) = self.address(name).and_then(|at| self.symbols.resolve(at)) {
                let start = within.symbol.address;
                entries.push(BlacklistEntry {
                    range: start..start.wrapping_add(within.size),
                    reason: Reason::CopiedText,
                });
            }
        }
        for name in FTRACE_CALLS {
            if let Some(start) = self.address(name) {
                entries.push(BlacklistEntry {
                    range: start..start.wrapping_add(CALL_LEN),
                    reason: Reason::FtraceTrampoline,
                });
            }
        }
    }

    /// Adds the functions of the kernel's own blacklist, each whole. As in the kernel (`__within_kprobe_blacklist`), a
    /// function that the compiler derived from a listed one is listed as well.
    fn functions(&self, entries: &mut Vec<BlacklistEntry>) -> Result<(), BlacklistError> {
        let reason = Reason::KprobeBlacklist;
        let (start, end) = ("__start_kprobe_blacklist", "__stop_kprobe_blacklist");
        let Some(table) = self.find(start, end)? else {
            return Ok(());
        };
        let mut names = HashSet::new();
        let mut add = |at: GuestVirtAddr| {
            let within = self.symbols.resolve(at)?;
            let range = at..at.wrapping_add(within.size.saturating_sub(within.offset));
            entries.push(BlacklistEntry { range, reason });
            Some(within.symbol.name)
        };
        for place in self.places(table, Format::FUNCTIONS)? {
            names.extend(add(place.start));
        }
        for symbol in self.symbols.iter() {
            if let Some((base, _)) = symbol.name.split_once('.')
                && names.contains(base)
            {
                add(symbol.address);
            }
        }
        Ok(())
    }

    /// Adds the constants that the kernel writes into its instructions: `RUNTIME_CONST` of
    /// `include/asm-generic/vmlinux.lds.h` makes a table of each, and `arch/x86/include/asm/runtime-const.h` says how
    /// long the constant is.
    fn constants(&self, entries: &mut Vec<BlacklistEntry>) -> Result<(), BlacklistError> {
        const PREFIX: &str = "__start_runtime_";
        for symbol in self.symbols.iter() {
            let Some(rest) = symbol.name.strip_prefix(PREFIX) else {
                continue;
            };
            let len = match rest.split_once('_') {
                Some(("ptr", _)) => 8,
                Some(("shift", _)) => 1,
                _ => 4,
            };
            let end = format!("__stop_runtime_{rest}");
            let format = Format::distances(Length::Fixed(len));
            let table = self.find(symbol.name, &end)?;
            self.add(entries, Reason::RuntimeConst, table, &[format])?;
        }
        Ok(())
    }
}
