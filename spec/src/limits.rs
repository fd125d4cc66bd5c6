//! What a probe can have at most.

/// Most calls that a return probe may follow at the same time, as in the kernel
/// (`KRETPROBE_MAXACTIVE_MAX` in `kernel/trace/trace_kprobe.c`).
pub const MAXACTIVE_MAX: u32 = 4096;

/// Most conditions of a probe.
pub const CONDITIONS_MAX: usize = 16;

/// Most arguments of a probe (`MAX_TRACE_ARGS` in `kernel/trace/trace_probe.h`).
pub const ARGUMENTS_MAX: usize = 128;

/// Bytes of an argument behind its name (`MAX_ARGSTR_LEN`, there too).
pub const ARGUMENT_MAX: usize = 63;

/// Bytes of an argument's name (`MAX_ARG_NAME_LEN`, there too).
pub const ARGUMENT_NAME_MAX: usize = 32;

/// Elements of an array (`MAX_ARRAY_LEN`, there too).
pub const ARRAY_MAX: u32 = 64;

/// Steps of a value besides its first: the kernel has room for 16 with the last (`FETCH_INSN_MAX`, there
/// too).
pub const NESTING_MAX: usize = 14;

/// Words of a stack, and the highest number of an argument: `PARAM_MAX_STACK` in
/// `kernel/trace/trace_probe.c`, with x86-64's stacks of 16 KiB.
pub const STACK_WORDS_MAX: u32 = 2048;

/// Bytes of a probe's name, and of its group's with a slash (`MAX_EVENT_NAME_LEN` in
/// `kernel/trace/trace.h`).
pub const NAME_MAX: usize = 64;

/// Return addresses that an event has if `stack` doesn't say how many.
pub const STACK_DEFAULT: u32 = 16;

/// Most return addresses of an event.
pub const STACK_MAX: u32 = 64;

/// Bytes of a filter.
pub const FILTER_MAX: usize = 4096;

/// Parentheses and `!` of a filter, one in the other.
pub const FILTER_DEPTH_MAX: usize = 32;

/// Comparisons of a filter.
pub const FILTER_TESTS_MAX: usize = 64;
