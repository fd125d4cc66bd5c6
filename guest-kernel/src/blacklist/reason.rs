//! Why a place can't be probed.

use std::fmt;

/// Why a place can't be probed, as a clause that says what the place is or what patches it.
///
/// Sources: Linux `kernel/kprobes.c` (`populate_kprobe_blacklist`, `check_kprobe_address_safe`),
/// `arch/x86/kernel/vmlinux.lds.S`, `arch/x86/kernel/alternative.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Reason {
    /// `.noinstr.text`
    Noinstr,
    /// `.entry.text`
    EntryText,
    /// `.kprobes.text`
    KprobesText,
    /// A function in `_kprobe_blacklist`, or what the compiler split from one.
    KprobeBlacklist,
    /// Code that the kernel copies and executes elsewhere.
    CopiedText,
    /// A call to `__fentry__`, or the nop in its place (`__mcount_loc`).
    FtraceSite,
    /// The call inside ftrace's own trampolines.
    FtraceTrampoline,
    /// `__jump_table`
    JumpLabel,
    /// `.static_call_sites`
    StaticCall,
    /// `.static_call.text`
    StaticCallTrampoline,
    /// `.smp_locks`
    SmpLock,
    /// `.altinstructions`
    Alternative,
    /// `.parainstructions`, up to Linux 6.6
    Paravirt,
    /// `.retpoline_sites`
    Retpoline,
    /// `.return_sites`
    ReturnThunk,
    /// `.call_sites`, from Linux 6.2
    CallThunk,
    /// `.ibt_endbr_seal`
    EndbrSeal,
    /// `.cfi_sites`, of kernels built by clang
    Cfi,
    /// `runtime_*`, from Linux 6.11
    RuntimeConst,
    /// `__bug_table`
    Bug,
}

/// When the kernel writes to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Patched {
    /// It doesn't: the place can't be probed for another reason.
    Never,
    /// While it starts, before `rest_init` runs (`alternative_instructions`, `vfs_caches_init`);
    /// in a module while it is loaded, before `do_init_module` runs. Once that is done the place
    /// is like any other, with what is there then as its original bytes.
    Once,
    /// At any time.
    AnyTime,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 20] = [
        Self::Noinstr,
        Self::EntryText,
        Self::KprobesText,
        Self::KprobeBlacklist,
        Self::CopiedText,
        Self::FtraceSite,
        Self::FtraceTrampoline,
        Self::JumpLabel,
        Self::StaticCall,
        Self::StaticCallTrampoline,
        Self::SmpLock,
        Self::Alternative,
        Self::Paravirt,
        Self::Retpoline,
        Self::ReturnThunk,
        Self::CallThunk,
        Self::EndbrSeal,
        Self::Cfi,
        Self::RuntimeConst,
        Self::Bug,
    ];

    /// The kind of place, in one word.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Noinstr => "noinstr",
            Self::EntryText => "entry",
            Self::KprobesText => "kprobes",
            Self::KprobeBlacklist => "blacklist",
            Self::CopiedText => "copied",
            Self::FtraceSite => "ftrace",
            Self::FtraceTrampoline => "ftrace-trampoline",
            Self::JumpLabel => "jump-label",
            Self::StaticCall => "static-call",
            Self::StaticCallTrampoline => "static-call-trampoline",
            Self::SmpLock => "smp-lock",
            Self::Alternative => "alternative",
            Self::Paravirt => "paravirt",
            Self::Retpoline => "retpoline",
            Self::ReturnThunk => "return-thunk",
            Self::CallThunk => "call-thunk",
            Self::EndbrSeal => "endbr-seal",
            Self::Cfi => "cfi",
            Self::RuntimeConst => "runtime-const",
            Self::Bug => "bug",
        }
    }

    /// When the kernel writes there.
    pub const fn patched(self) -> Patched {
        match self {
            Self::Noinstr
            | Self::EntryText
            | Self::KprobesText
            | Self::KprobeBlacklist
            | Self::CopiedText
            | Self::Bug => Patched::Never,
            Self::FtraceSite
            | Self::FtraceTrampoline
            | Self::JumpLabel
            | Self::StaticCall
            | Self::StaticCallTrampoline
            | Self::SmpLock => Patched::AnyTime,
            Self::Alternative
            | Self::Paravirt
            | Self::Retpoline
            | Self::ReturnThunk
            | Self::CallThunk
            | Self::EndbrSeal
            | Self::Cfi
            | Self::RuntimeConst => Patched::Once,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noinstr => "it is code that the kernel keeps free of instrumentation (noinstr)",
            Self::EntryText => "it is entry code, which runs before the kernel is set up to run",
            Self::KprobesText => "it is part of the kernel's own handling of probes",
            Self::KprobeBlacklist => "the kernel itself allows no probe in this function",
            Self::CopiedText => "the kernel copies this code to run it elsewhere",
            Self::FtraceSite => "the kernel's function tracer patches this call",
            Self::FtraceTrampoline => "the kernel's function tracer patches where this call leads",
            Self::JumpLabel => "the kernel patches this jump when it switches a static key",
            Self::StaticCall => "the kernel patches this call when it changes a static call",
            Self::StaticCallTrampoline => {
                "the kernel patches this trampoline when it changes a static call"
            }
            Self::SmpLock => {
                "the kernel patches this lock prefix when it goes from one CPU to several"
            }
            Self::Alternative => {
                "at boot the kernel replaces these instructions by what suits the processor"
            }
            Self::Paravirt => "at boot the kernel replaces this call by what suits its hypervisor",
            Self::Retpoline => {
                "at boot the kernel replaces this indirect branch by what the processor needs"
            }
            Self::ReturnThunk => {
                "at boot the kernel replaces this return by what the processor needs"
            }
            Self::CallThunk => "at boot the kernel may redirect this call to count its depth",
            Self::EndbrSeal => "at boot the kernel removes this endbr64, which nothing branches to",
            Self::Cfi => "at boot the kernel rewrites what precedes this function",
            Self::RuntimeConst => "at boot the kernel writes a constant into this instruction",
            Self::Bug => "it marks a BUG or WARN, by which the kernel recognizes the place",
        })
    }
}
