//! The arguments.

mod actions;
mod certs;
mod ci;
mod cloud_init;
mod debugging;
mod devices;
mod export;
mod format;
mod guest;
mod images;
mod kubernetes;
mod root;
mod target;
mod tracing;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use vmprobe_command_line::Shell;

pub use actions::ActionArgs;
pub use certs::{CertsClient, CertsCommand, CertsInit, CertsServer, NewClient, Validity};
pub use ci::{Ci, CiTest};
pub use cloud_init::CloudInitArgs;
pub use debugging::{DumpArgs, Gdb};
pub use devices::{BackendArg, DeviceArgs, DiskArg, LimitArg, NetworkArg, ShareArg, VsockArg};
pub use export::{Export as ExportArgs, NatsArgs, ParquetArgs};
pub use format::{Format, FormatArgs};
pub use guest::{Boot, ConsoleKind, GuestArgs, MachineArgs};
pub use images::{ImageCommand, Push};
pub use kubernetes::CiJob;
pub use root::{RootArgs, RootPlace};
pub use target::{ServerArgs, TargetArgs};
pub use tracing::{
    Flame, Latency, ListFunctions, Record, Stack, Top, Trace, TracedArgs, Types, UntilArgs,
};

const EXIT_CODES: &str = "\
Exit codes:
  0    done (also when the reader of a pipe has gone)
  1    the server refused, or the command failed; the reason is on standard error
  2    wrong arguments, or a wrong configuration
  run, vm wait: how the guest ended: 0 power-off, 3 reset, 4 panic, 5 triple fault,
       6 killed, 7 its monitor failed; 125 when the command itself failed
  run --root: that of the command in the guest, 128 and its number for a signal; 125 when
       the guest ended before it, 127 when it could not be started
  boot-timeline: 0 when the guest got there, else as run
  doctor: that of `vmprobed doctor`";

const PROBE_SYNTAX: &str = "\
A probe, in quotes where it has spaces:
  [NAME=]PLACE                an event before the instruction there
  p[:NAME] PLACE              the same, in the form of the kernel's kprobe_events
  r[MAXACTIVE][:NAME] PLACE   an event when the function returns; also SYMBOL%return. While
                              a call is followed, the guest's live patching waits for its task:
                              see `vmprobe probe calls`. With rets behind it nothing waits: it
                              is breakpoints at the function's own returns
  w[:NAME] PLACE[/LENGTH][:ACCESS]
                              an event after each write (ACCESS w), or read or write (rw),
                              to 1, 2, 4 or 8 bytes; at most four of these at a time
PLACE is [MODULE:]SYMBOL[+OFFSET] or 0xADDRESS. Offsets are decimal, or hexadecimal with 0x.
Without an offset p goes behind the function's ftrace site. A module need not be loaded yet.
A SYMBOL with * or ? stands for all functions that match and can be probed.
Behind it: post (also an event after the instruction), fault (also one when it raises an
exception), disabled (register, but don't arm), and what hits are wanted for:
  count            they are counted, without events
  regs=rdi+rsi     events have these registers only; regs=none for none
  if=edi==2&&pid==100
                   only those that meet all of these; a register of any width, cpu, pid or tgid,
                   then == != < <= > >= or & (a bit in common), then a number. Numbers are unsigned
                   unless negative or behind a relation that ends in s, as in eax>s0
  stack[=N]        events have the return addresses on the stack, at most 16, or N
  lossless         a vCPU whose ring is full waits, instead of losing a jump's record
  nojump           the probe stays a breakpoint
Other words behind the place are arguments, values that each event has: [NAME=]VALUE[:TYPE], such
as %di, $arg1, $retval, $comm, +8(%si):u32, +u0($arg2):ustring, buf, file->f_inode->i_ino;
count=count for a parameter that is called like one of the words above.
At the end may be `if` and a filter on the arguments, comm, pid, tgid and cpu:
  p:open do_sys_openat2 dfd name=$arg2:ustring if comm == \"sh\" && dfd != -100

A guest's own command line may have such probes too: vmprobe.probe=PROBE[;PROBE...], with
commas for the spaces.";

/// Kernel probes from outside the guest.
#[derive(Debug, Parser)]
#[command(name = "vmprobe", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a guest on a server of its own, console on this terminal, until it ends
    ///
    /// With --root a folder of this host's is the guest's root: vmprobe run --kernel bzImage --root / -- make check
    /// runs one command there, with this process' input and output, and ends with its exit code. With --init instead of
    /// a command, the system in the folder or on the disk is booted.
    #[command(after_help = PROBE_SYNTAX)]
    Run(Box<Run>),
    /// Boot a guest on a server of its own and print what its boot spends its time on
    ///
    /// Probes well-known functions on the way from the kernel's first C function to PID 1, and
    /// every initcall. The guest is killed when it gets to where PID 1's program is executed.
    #[command(after_help = PROBE_SYNTAX)]
    BootTimeline(BootTimeline),
    /// Boot kernels, run a test on each, and report
    #[command(after_help = ci::CI_EXAMPLES)]
    Ci(Box<Ci>),
    /// Say whether this host can run guests, and what is missing
    Doctor(Doctor),
    /// Create and control VMs
    #[command(subcommand)]
    Vm(VmCommand),
    /// Hand files over to a server for its VMs, list and delete them
    #[command(subcommand, after_help = images::IMAGE_EXAMPLES)]
    Image(ImageCommand),
    /// Register, list, switch and remove probes
    #[command(subcommand)]
    Probe(ProbeCommand),
    /// Follow the events of a VM, of probes that are registered or of new ones
    #[command(after_help = tracing::TRACE_EXAMPLES)]
    Trace(Trace),
    /// Bring events to other engines: a bus, files of columns
    #[command(after_help = export::EXPORT_EXAMPLES)]
    Export(Box<ExportArgs>),
    /// Write the events of a VM to a file
    #[command(after_help = tracing::RECORD_EXAMPLES)]
    Record(Record),
    /// Count stacks, and show the most frequent ones
    #[command(after_help = tracing::STACK_EXAMPLES)]
    Stack(Stack),
    /// Draw a flame graph of stacks
    #[command(after_help = tracing::FLAME_EXAMPLES)]
    Flame(Flame),
    /// Show how long functions take from entry to return, as histograms
    #[command(after_help = tracing::LATENCY_EXAMPLES)]
    Latency(Latency),
    /// Show what probes do right now: hits, rates, exits, latencies
    #[command(after_help = tracing::TOP_EXAMPLES)]
    Top(Top),
    /// List the functions that can be probed
    #[command(after_help = tracing::LIST_EXAMPLES)]
    List(ListFunctions),
    /// Show a type of the guest's kernel, with the offsets of its members
    #[command(after_help = tracing::TYPES_EXAMPLES)]
    Types(Types),
    /// Look up symbols of the guest's kernel
    Symbols(SymbolsArgs),
    /// Let gdb debug a guest's kernel
    #[command(after_help = debugging::GDB_EXAMPLES)]
    Gdb(Gdb),
    /// Write a guest's memory and vCPUs to an ELF core file, for crash and drgn
    #[command(after_help = debugging::DUMP_EXAMPLES)]
    Dump(DumpArgs),
    /// Make certificates for a server and its clients
    #[command(subcommand, after_help = certs::CERTS_EXAMPLES)]
    Certs(CertsCommand),
    /// Attach to a VM's console; on a terminal, Ctrl-] detaches
    Console(TargetArgs),
    /// Print a Kubernetes Job that runs each job of a matrix in a pod of its own
    #[command(after_help = kubernetes::CI_JOB_EXAMPLES)]
    CiJob(CiJob),
    /// Print a script that completes the words of this program's command line
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Manual {
        /// The folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

impl Command {
    /// Returns the exit code when the command itself fails: one that a guest's own code won't be taken for, where the
    /// guest's is passed on.
    pub fn failure_code(&self) -> u8 {
        match self {
            Self::Run(_) | Self::BootTimeline(_) | Self::Vm(VmCommand::Wait(_)) => 125,
            _ => 1,
        }
    }
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub guest: GuestArgs,
    #[command(flatten)]
    pub root: RootArgs,
    #[command(flatten)]
    pub cloud_init: CloudInitArgs,
    /// Write events to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct BootTimeline {
    /// Kernel: a bzImage or a vmlinux
    #[arg(value_name = "KERNEL")]
    pub kernel: PathBuf,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Watch until this probe is hit, instead of until PID 1's program is executed
    #[arg(long, value_name = "PROBE")]
    pub until: Option<String>,
    /// Let the guest go on to its own end instead of killing it
    #[arg(long)]
    pub keep: bool,
    /// Show so many of the slowest initcalls
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    #[command(flatten)]
    pub format: FormatArgs,
    /// Write all events to this file
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Create a VM and start it
    #[command(after_help = PROBE_SYNTAX)]
    Create(Box<Create>),
    /// List the server's VMs
    List(List),
    /// Wait until the guest has ended; exits with the guest's exit code
    Wait(VmWait),
    /// Start a VM that was created with --hold
    Start(TargetArgs),
    /// Stop the vCPUs
    Pause(TargetArgs),
    /// Let the vCPUs go on
    Resume(TargetArgs),
    /// End the guest at once
    Kill(TargetArgs),
    /// Forget a VM; kills it first where it runs
    Delete(TargetArgs),
    /// Show one VM
    Info(Info),
}

#[derive(Debug, Args)]
pub struct Create {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Name of the VM; the server chooses one when left out
    #[arg(long, default_value = "")]
    pub name: String,
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Don't start it yet
    #[arg(long)]
    pub hold: bool,
    /// Which of the kernel, initramfs, symbols and disks are handed over to the server, as images. What isn't is a path
    /// on the server's host, or `image:NAME`. A guest that writes to a disk that was handed over writes to a copy,
    /// which goes with the VM
    #[arg(long, value_enum, default_value_t = Push::Auto)]
    pub push: Push,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Also the general registers of this vCPU
    #[arg(long, value_name = "VCPU")]
    pub registers: Option<u32>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct VmWait {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// Register probes, all or none
    #[command(after_help = PROBE_SYNTAX)]
    Add(ProbeAdd),
    /// List probes: where they are, how they work, their hits
    List(ProbeList),
    /// Remove probes, all or none
    Rm(ProbeRm),
    /// Enable probes, all or none
    Enable(ProbeNames),
    /// Disable probes, all or none; they stay registered, but aren't hit
    Disable(ProbeNames),
    /// Arm all enabled probes of the VM again after `disarm`
    ///
    /// As `echo 1 > /sys/kernel/debug/kprobes/enabled` does for the kernel's own.
    Arm(TargetArgs),
    /// Disarm all probes of the VM at once; each stays enabled or disabled as it is
    ///
    /// As `echo 0 > /sys/kernel/debug/kprobes/enabled` does for the kernel's own.
    Disarm(TargetArgs),
    /// Let probes become jumps, which cost no exit, or keep them breakpoints
    ///
    /// Without a probe, all of the VM at once; each keeps its own setting. As
    /// `sysctl debug.kprobes-optimization` does for the kernel's own.
    Optimize(ProbeOptimize),
    /// Wait until it is settled which probes are jumps
    Wait(ProbeWait),
    /// List the calls that return probes follow now, with their tasks
    ///
    /// The guest's own live patching waits for these tasks until the calls have returned, or the
    /// probes are removed.
    Calls(ProbeCalls),
    /// List what can't be probed in the guest's kernel, and why
    ///
    /// In the manner of /sys/kernel/debug/kprobes/blacklist: range and symbol, then kind and
    /// reason, with tabs between them.
    Blacklist(ProbeBlacklist),
}

#[derive(Debug, Args)]
pub struct ProbeAdd {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The probes
    #[arg(value_name = "PROBE", required = true)]
    pub specs: Vec<String>,
    /// Register them, but don't arm them until they are enabled
    #[arg(long)]
    pub disabled: bool,
    /// Also an event after each probed instruction, with the registers it leaves behind
    #[arg(long)]
    pub post: bool,
    /// Also an event when a probed instruction raises an exception
    #[arg(long)]
    pub fault: bool,
    /// Return probes leave the return address alone: breakpoints at the functions' own `ret`s instead
    #[arg(long)]
    pub rets: bool,
    /// Only count hits, without events
    #[arg(long, conflicts_with = "regs")]
    pub count: bool,
    /// Registers that events have, such as rdi,rsi,rflags; all by default
    #[arg(long, value_name = "REGISTERS")]
    pub regs: Option<String>,
    /// Only hits that meet this, such as 'edi == -100 && pid == 7' (repeatable)
    #[arg(long = "if", value_name = "CONDITION")]
    pub conditions: Vec<String>,
    /// A vCPU whose ring is full waits, instead of losing a jump's record
    #[arg(long)]
    pub lossless: bool,
    /// Keep the probes breakpoints
    #[arg(long)]
    pub no_jump: bool,
    #[command(flatten)]
    pub actions: ActionArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ProbeOptimize {
    #[command(flatten)]
    pub target: TargetArgs,
    /// What to do
    #[arg(value_enum)]
    pub switch: OnOff,
    /// Names or ids (a number alone is an id); the whole VM when left out
    #[arg(value_name = "PROBE")]
    pub probes: Vec<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Let them become jumps
    On,
    /// Keep them breakpoints
    Off,
}

#[derive(Debug, Args)]
pub struct ProbeWait {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Names or ids (a number alone is an id); all when left out
    #[arg(value_name = "PROBE")]
    pub probes: Vec<String>,
    /// Wait so long at most
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ProbeNames {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Names or ids (a number alone is an id)
    #[arg(value_name = "PROBE", required = true)]
    pub probes: Vec<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ProbeCalls {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ProbeBlacklist {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Only what covers this symbol, or those that match a pattern with * and ?
    #[arg(value_name = "PATTERN", default_value = "")]
    pub pattern: String,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ProbeList {
    #[command(flatten)]
    pub target: TargetArgs,
    /// As the kernel's own /sys/kernel/debug/kprobes/list, to the byte
    #[arg(long, conflicts_with_all = ["json", "output"])]
    pub kernel: bool,
    /// All columns, however long the lines get
    #[arg(long, conflicts_with_all = ["kernel", "json", "output"])]
    pub wide: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ProbeRm {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Names or ids (a number alone is an id)
    #[arg(value_name = "PROBE", required_unless_present = "all")]
    pub probes: Vec<String>,
    /// All probes of the VM
    #[arg(long, conflicts_with = "probes")]
    pub all: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct SymbolsArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// A name, or a pattern with * and ?
    #[arg(value_name = "PATTERN", group = "what")]
    pub pattern: Option<String>,
    /// The symbol that covers this address
    #[arg(long, value_name = "ADDRESS", group = "what", value_parser = address)]
    pub address: Option<u64>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: u32,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Reads an address as people paste it: hexadecimal, with or without 0x.
fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| "an address is up to 16 hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests;
