//! The arguments of the commands that show or record what probes see.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::actions::ActionArgs;
use super::format::FormatArgs;
use super::target::TargetArgs;

pub const TRACE_EXAMPLES: &str = "\
A PROBE that is a definition (see `vmprobe probe add --help`) is registered for the time of the
trace and removed at its end. It may have arguments, in the form of the kernel's kprobe_events, a
stack, and a filter behind the word `if`. Any other PROBE is the name of one that is registered.
Without any, the events of all probes of the VM are shown.

Lines are those of ftrace. A probe without arguments shows registers in their place.

Examples:
  vmprobe trace 'p:open do_sys_openat2 dfd name=+u0($arg2):ustring'
  vmprobe trace 'p:open do_sys_openat2 name=$arg2:ustring' --filter 'comm == \"sh\"'
  vmprobe trace 'r:done vfs_read count=count ret=$retval:s64 if ret < 0'
  vmprobe trace 'p tcp_*' --count 100                 # all functions that match
  vmprobe trace -f probes.txt --seconds 10 --json
  vmprobe trace open read                             # probes that are registered already
  vmprobe trace --hosts 'kvm*' --vm 'web-*' 'r:slow vfs_fsync_range'";

pub const RECORD_EXAMPLES: &str = "\
The file's ending tells its format:
  .txt                         the text of the kernel's trace file
  .json, .jsonl                one JSON value a line
  .perfetto-trace, .pftrace    for Perfetto's page
  .dat                         for trace-cmd and KernelShark
  .folded                      stacks with how often they occurred
  .svg                         a flame graph
The last two are of stacks: definitions without `stack` get one.

Examples:
  vmprobe record -o opens.txt 'p:open do_sys_openat2 name=$arg2:ustring' --seconds 10
  vmprobe record -o reads.perfetto-trace 'p vfs_read' 'r vfs_read' --count 100000
  vmprobe record -o all.dat                           # all probes that are registered";

pub const STACK_EXAMPLES: &str = "\
Examples:
  vmprobe stack 'p kmem_cache_alloc' --seconds 5
  vmprobe stack 'p vfs_write stack=32 if comm == \"dd\"' --count 1000 --top 3";

pub const FLAME_EXAMPLES: &str = "\
Examples:
  vmprobe flame 'p __alloc_pages' -o pages.svg --seconds 10
  vmprobe flame 'p blk_mq_submit_bio stack=64' -o io.svg --count 10000";

pub const LATENCY_EXAMPLES: &str = "\
Examples:
  vmprobe latency vfs_fsync_range --seconds 30
  vmprobe latency vfs_read vfs_write --filter 'comm == \"dd\"'
  vmprobe latency 'ext4_sync_*'";

pub const TOP_EXAMPLES: &str = "\
The busiest probes come first. A rate is that of the last interval; so is the latency, which is the
average from entry to return, of return probes that have events.

Examples:
  vmprobe top
  vmprobe top --interval 5 > rates.txt
  vmprobe top --once";

pub const LIST_EXAMPLES: &str = "\
With a loaded module's name before it, a pattern matches the module's functions. Whether the
instruction at a function's start can be probed is known for certain only when it is probed.

Examples:
  vmprobe list 'tcp_*'
  vmprobe list 'tun:*'
  vmprobe list --all 'do_*' | grep noinstr";

pub const TYPES_EXAMPLES: &str = "\
Behind each member are its offset and its size in bytes; of a bit field the offset, the first bit
and the number of bits. Such members can be arguments: 'p vfs_read file->f_inode->i_ino'.

Examples:
  vmprobe types 'struct file'
  vmprobe types 'struct tcp_*'
  vmprobe types 'tun:struct tun_file'
  vmprobe types '*' | wc -l";

/// The probes of a trace.
#[derive(Debug, Args)]
pub struct TracedArgs {
    /// Definitions of probes, or names of registered ones
    #[arg(value_name = "PROBE")]
    pub probes: Vec<String>,
    /// Definitions from a file, one a line; `#` begins a comment (repeatable)
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Only hits that meet this; for definitions that have no filter of their own
    #[arg(long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    #[command(flatten)]
    pub until: UntilArgs,
}

/// When a trace ends, besides Ctrl-C and the guest's end.
#[derive(Clone, Copy, Debug, Args)]
pub struct UntilArgs {
    /// Stop after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct Trace {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub traced: TracedArgs,
    /// Trace on several servers at once, in the place of --server: on those of the configuration whose names match, and
    /// at addresses; in each of their VMs, or in those whose names match --vm. See docs/fleets.md
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        conflicts_with_all = ["names", "header"]
    )]
    pub hosts: Vec<String>,
    /// How long events wait for those of a server that is silent
    #[arg(long, value_name = "MS", default_value_t = 2000, requires = "hosts")]
    pub window: u32,
    /// Only this registered probe, by name (repeatable)
    #[arg(long = "probe", value_name = "NAME")]
    pub names: Vec<String>,
    /// The kernel's header over the columns
    #[arg(long, conflicts_with_all = ["json", "output"])]
    pub header: bool,
    #[command(flatten)]
    pub format: FormatArgs,
    /// Of the definitions
    #[command(flatten)]
    pub actions: ActionArgs,
}

#[derive(Debug, Args)]
pub struct Record {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The file; its ending tells the format
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub traced: TracedArgs,
}

#[derive(Debug, Args)]
pub struct Stack {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub traced: TracedArgs,
    /// Show so many stacks
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct Flame {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The file: .svg, or .folded for other tools
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub traced: TracedArgs,
}

#[derive(Debug, Args)]
pub struct Latency {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Functions, or patterns with * and ?
    #[arg(value_name = "FUNCTION", required = true)]
    pub functions: Vec<String>,
    /// Only calls that meet this at their return
    #[arg(long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub until: UntilArgs,
}

#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Seconds between two looks
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    pub interval: Duration,
    /// One table, then the end
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ListFunctions {
    #[command(flatten)]
    pub target: TargetArgs,
    /// A name, or a pattern with * and ?
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub pattern: String,
    /// Those that can't be probed too, with the reason behind a tab
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct Types {
    #[command(flatten)]
    pub target: TargetArgs,
    /// A type, such as 'struct file', or a pattern with * and ? for a list of names
    #[arg(value_name = "TYPE")]
    pub name: String,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Reads seconds, such as `2` or `0.5`: more than none, and at most a million.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "a number of seconds, such as 2 or 0.5".to_owned())?;
    if !(0.001..=1_000_000.0).contains(&number) {
        return Err("0.001 to 1000000 seconds".to_owned());
    }
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction() {
        assert_eq!(seconds("2").unwrap(), Duration::from_secs(2));
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["", "x", "0", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
