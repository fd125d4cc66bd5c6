//! What a probe can have at most.

/// Most calls that a return probe may follow at the same time, as in the kernel
/// (`KRETPROBE_MAXACTIVE_MAX` in `kernel/trace/trace_kprobe.c`).
pub const MAXACTIVE_MAX: u32 = 4096;

/// Most conditions of a probe.
pub const CONDITIONS_MAX: usize = 16;
