//! The arguments of `vmprobe ci`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::format::Format;

pub const CI_EXAMPLES: &str = "\
Examples:
  vmprobe ci --kernel bzImage --root / --run 'make check'
  vmprobe ci --kernel bzImage --kernel old=/boot/vmlinuz --root / --run ./test.sh \\
             --expect 'p:opened vfs_open' --expect-none 'r vfs_mkdir if $retval == -28' \\
             --max-latency 'r vfs_fsync' 50ms --coverage 'ext4_*' --junit report.xml
  vmprobe ci matrix.toml -j 4 --json report.json
  vmprobe ci matrix.toml -o json | jq .failed

A job is one test on one kernel. It passes when its command ends with 0 (without --run: when the guest
switches itself off), the kernel reports nothing wrong on its console, all tests pass that print KTAP or
TAP there or on the command's output, and all expectations are met.

A matrix has tables [defaults], [kernels.NAME] and [tests.NAME], with the long names of the options as keys;
a kernel has its file as `kernel`. Each test runs on each kernel. What is given here comes on top.

Exit codes: 0 all jobs have passed, 1 some have not, 2 wrong arguments.";

/// Boot kernels, run a test on each, and report
#[derive(Debug, Args)]
pub struct Ci {
    /// A file of kernels and tests
    #[arg(value_name = "MATRIX", required_unless_present = "kernels")]
    pub matrix: Option<PathBuf>,
    /// A kernel (repeatable), a bzImage or a vmlinux; called by its release unless a name is before it
    #[arg(long = "kernel", value_name = "[NAME=]FILE")]
    pub kernels: Vec<String>,
    #[command(flatten)]
    pub test: CiTest,
    /// Paths in the matrix count from here [default: the matrix' folder]
    #[arg(long, value_name = "FOLDER", requires = "matrix")]
    pub paths_from: Option<PathBuf>,
    /// Run only the job of this number, from 0 on
    #[arg(long, value_name = "N")]
    pub job_index: Option<usize>,
    /// Jobs at the same time; as many as this host has CPUs for, when left out
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: Option<u32>,
    /// The form of the report on standard output; with `json` all else that is shown goes to standard error
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    pub output: Format,
    /// Write a report in JUnit's form
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write a report in JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write each job's console, output and events into a folder of its own below this one
    #[arg(long, value_name = "FOLDER")]
    pub artifacts: Option<PathBuf>,
    /// Don't show the output of the commands, but where a job fails
    #[arg(short, long)]
    pub quiet: bool,
}

/// What a test is.
#[derive(Debug, Default, Args)]
pub struct CiTest {
    /// The guest's root: a folder of this host's, or a disk image (",qcow2" behind it for one of those)
    ///
    /// The guest's changes are gone with it. Without it the guest runs its initramfs, or the tests within the kernel,
    /// and is to switch itself off.
    #[arg(long, value_name = "FOLDER|IMAGE")]
    pub root: Option<PathBuf>,
    /// A command for the shell in the guest's root
    #[arg(long, value_name = "COMMAND")]
    pub run: Option<String>,
    /// End a job that takes longer than this, such as 90s or 10m, and show where it hangs [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
    /// Run a job that fails again, so often at most
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// A folder in the root in which the guest's changes stay (repeatable)
    #[arg(long = "rw", value_name = "FOLDER")]
    pub rw: Vec<PathBuf>,
    /// Where the kernel's modules are, instead of /lib/modules/RELEASE
    #[arg(long, value_name = "FOLDER")]
    pub modules: Option<PathBuf>,
    /// Run the command as the user who runs this, instead of as root
    #[arg(long)]
    pub as_user: bool,
    /// The folder in the guest that the command is started in
    #[arg(long, value_name = "FOLDER")]
    pub chdir: Option<PathBuf>,
    /// A variable of the command's: one to pass on, or a new one (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Initial RAM disk, for a guest without --root
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    pub initramfs: Option<PathBuf>,
    /// More words for the kernel's command line (repeatable)
    #[arg(short, long, value_name = "TEXT")]
    pub append: Vec<String>,
    /// Guest memory in MiB [default: 512]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory: Option<u64>,
    /// Virtual CPUs [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub vcpus: Option<u32>,
    /// A disk (repeatable), as `vmprobe run` takes it
    #[arg(long, value_name = "FILE[,qcow2|,raw][,ro]")]
    pub disk: Vec<String>,
    /// A network device (repeatable), as `vmprobe run` takes it
    ///
    /// "passt" gives each job a network of its own, by which it reaches what this host reaches, and needs no privilege.
    #[arg(
        long,
        value_name = "tap=NAME|passt[=SOCKET][,mac=ADDRESS][,rate=N][,pps=N]"
    )]
    pub net: Vec<String>,
    /// A probe whose events are recorded (repeatable)
    #[arg(long, value_name = "PROBE")]
    pub probe: Vec<String>,
    /// A probe that is to be hit, at least once, or as often as a number before it says: '5 p:x f' (repeatable)
    #[arg(long, value_name = "[N ]PROBE")]
    pub expect: Vec<String>,
    /// A probe that is not to be hit (repeatable)
    #[arg(long, value_name = "PROBE")]
    pub expect_none: Vec<String>,
    /// A function and the longest time that a call of it is to take, such as `r vfs_fsync` 5ms (repeatable)
    #[arg(long, num_args = 2, value_names = ["PROBE", "TIME"])]
    pub max_latency: Vec<String>,
    /// Functions of which to count the calls, as a pattern, and how many of them are to be called at least:
    /// 'ext4_*' or 'ext4_*=60%' (repeatable)
    #[arg(long, value_name = "PATTERN[=N%]")]
    pub coverage: Vec<String>,
    /// A kind of the kernel's reports that fails no job, such as warning (repeatable)
    #[arg(long, value_name = "KIND")]
    pub allow: Vec<String>,
}
