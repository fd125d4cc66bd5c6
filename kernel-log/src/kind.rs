//! The kinds of reports.

use std::fmt;

/// What a kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An exception in the kernel that nothing there deals with: a page fault, an `invalid opcode`, a `divide
    /// error`, an `int3` (`page_fault_oops` in `arch/x86/mm/fault.c`, `die` in `arch/x86/kernel/dumpstack.c`).
    Oops,
    /// A general protection fault in the kernel (`exc_general_protection` in `arch/x86/kernel/traps.c`).
    GeneralProtection,
    /// A double fault (`exc_double_fault` in `arch/x86/kernel/traps.c`).
    DoubleFault,
    /// A stack that has run into its guard page (`handle_stack_overflow` in `arch/x86/kernel/traps.c`).
    StackOverflow,
    /// `BUG()` or `BUG_ON()`: `kernel BUG at` (`lib/bug.c`).
    Bug,
    /// The kernel has given up: `Kernel panic - not syncing` (`kernel/panic.c`).
    Panic,
    /// `WARN()`, `WARN_ON()` and the like (`__warn` in `kernel/panic.c`, `lib/bug.c`).
    Warning,
    /// A task that has waited too long (`kernel/hung_task.c`).
    HungTask,
    /// A CPU that doesn't let other tasks run (`kernel/watchdog.c`).
    SoftLockup,
    /// A CPU that takes no interrupts (`kernel/watchdog.c`).
    HardLockup,
    /// A CPU or task that holds up RCU (`kernel/rcu/tree_stall.h`, `kernel/rcu/tasks.h`).
    RcuStall,
    /// Workers of a workqueue that make no progress (`kernel/workqueue.c`).
    WorkqueueLockup,
    /// What lockdep has found about locks or RCU (`kernel/locking/lockdep.c`).
    Lockdep,
    /// A wrong access to memory (`mm/kasan/report.c`).
    Kasan,
    /// A data race (`kernel/kcsan/report.c`).
    Kcsan,
    /// Use of memory that has no value yet (`mm/kmsan/report.c`).
    Kmsan,
    /// Undefined behaviour (`lib/ubsan.c`).
    Ubsan,
    /// A wrong access to sampled memory (`mm/kfence/report.c`).
    Kfence,
    /// Memory that nothing seems to point to any more (`mm/kmemleak.c`).
    Kmemleak,
    /// Code that may sleep where it must not, or a task switch there (`__might_resched` and
    /// `__schedule_bug` in `kernel/sched/core.c`).
    SleepInAtomic,
    /// Memory that isn't as the kernel has left it: `BUG: Bad page state`, a slab's red zone (`mm/page_alloc.c`,
    /// `mm/slub.c`).
    MemoryCorruption,
    /// Any other line that begins with `BUG:`.
    OtherBug,
    /// A process that is killed for want of memory (`mm/oom_kill.c`).
    OutOfMemory,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 23] = [
        Self::Oops,
        Self::GeneralProtection,
        Self::DoubleFault,
        Self::StackOverflow,
        Self::Bug,
        Self::Panic,
        Self::Warning,
        Self::HungTask,
        Self::SoftLockup,
        Self::HardLockup,
        Self::RcuStall,
        Self::WorkqueueLockup,
        Self::Lockdep,
        Self::Kasan,
        Self::Kcsan,
        Self::Kmsan,
        Self::Ubsan,
        Self::Kfence,
        Self::Kmemleak,
        Self::SleepInAtomic,
        Self::MemoryCorruption,
        Self::OtherBug,
        Self::OutOfMemory,
    ];

    /// Returns a word for it that programs can rely on.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Oops => "oops",
            Self::GeneralProtection => "general-protection",
            Self::DoubleFault => "double-fault",
            Self::StackOverflow => "stack-overflow",
            Self::Bug => "bug",
            Self::Panic => "panic",
            Self::Warning => "warning",
            Self::HungTask => "hung-task",
            Self::SoftLockup => "soft-lockup",
            Self::HardLockup => "hard-lockup",
            Self::RcuStall => "rcu-stall",
            Self::WorkqueueLockup => "workqueue-lockup",
            Self::Lockdep => "lockdep",
            Self::Kasan => "kasan",
            Self::Kcsan => "kcsan",
            Self::Kmsan => "kmsan",
            Self::Ubsan => "ubsan",
            Self::Kfence => "kfence",
            Self::Kmemleak => "kmemleak",
            Self::SleepInAtomic => "sleep-in-atomic",
            Self::MemoryCorruption => "memory-corruption",
            Self::OtherBug => "other-bug",
            Self::OutOfMemory => "out-of-memory",
        }
    }

    /// Returns true if the report means that the kernel has a fault.
    ///
    /// All do but [`OutOfMemory`](Self::OutOfMemory): a guest with little memory and a large program has no
    /// fault. A [`Warning`](Self::Warning) is one, as the kernel's own rules keep `WARN()` for what must not happen
    /// (`Documentation/process/coding-style.rst`, 22).
    #[must_use]
    pub fn is_failure(self) -> bool {
        self != Self::OutOfMemory
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
