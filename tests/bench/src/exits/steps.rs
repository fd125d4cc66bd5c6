//! How many instructions a hit takes from `KVM_RUN`'s return to its next call, and in how many lines of code they lie.
//! They are counted by single steps of the vCPU's thread, so that other load on the machine doesn't affect them. A
//! thread can't be traced from its own process: another process of this program does it.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::{env, fs};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls::KVM_RUN;

/// The first argument with which this program only traces a thread; the second is the thread's number.
const TRACE: &str = "trace-thread";
/// Hits that are counted. The figures are the medians.
const HITS: usize = 101;
/// Bytes of a line of the processor's caches.
const LINE: u64 = 64;
/// `syscall` (SDM vol. 2), as the first bytes of a little-endian word.
const SYSCALL: u16 = 0x050f;

/// Why hits could not be counted.
#[derive(Debug, thiserror::Error)]
pub enum StepsError {
    /// The guest has none, or its name is not readable.
    #[error("no thread of this process runs a vCPU")]
    NoThread,
    /// No second process of this program.
    #[error("can't run this program once more")]
    Run(#[source] io::Error),
    /// The second process has not counted; it says why.
    #[error("the vCPU's thread could not be traced")]
    NotTraced,
}

/// The instructions and lines of one hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Steps {
    /// How many instructions are executed.
    pub instructions: u64,
    /// In how many lines of the processor's caches they lie.
    pub lines: u64,
}

/// Counts hits of the only vCPU that a thread of this process runs.
///
/// # Errors
/// See [`StepsError`].
pub fn count() -> Result<Steps, StepsError> {
    let thread = vcpu_thread().ok_or(StepsError::NoThread)?;
    // SAFETY: it lets other processes trace this one where the Yama module asks for that, and touches no memory
    // (prctl(2), PR_SET_PTRACER).
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let program = env::current_exe().map_err(StepsError::Run)?;
    let mut tracer = Command::new(program);
    tracer.args([TRACE, &thread]).stderr(Stdio::inherit());
    let output = tracer.output().map_err(StepsError::Run)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.split_whitespace().map(str::parse);
    match numbers.collect::<Result<Vec<_>, _>>().as_deref() {
        Ok([instructions, lines]) => Ok(Steps {
            instructions: *instructions,
            lines: *lines,
        }),
        _ => Err(StepsError::NotTraced),
    }
}

/// Returns the number of the thread that runs a vCPU.
fn vcpu_thread() -> Option<String> {
    /// How often the list of threads is read.
    const TRIES: u32 = 1000;
    (0..TRIES).find_map(|_| listed_vcpu_thread())
}

/// As [`vcpu_thread`], by one reading of the list of threads. If a thread ends during that, others may be missing in
/// the list (fs/proc/base.c, `next_tid`).
fn listed_vcpu_thread() -> Option<String> {
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten();
    let is_vcpu = |path: &std::path::Path| {
        let name = fs::read_to_string(path.join("comm"));
        name.is_ok_and(|name| name.starts_with("vcpu"))
    };
    let found = threads.map(|thread| thread.path()).find(|it| is_vcpu(it))?;
    Some(found.file_name()?.to_str()?.to_owned())
}

/// The thread that this process is to trace.
pub fn thread_to_trace() -> Option<i32> {
    let mut arguments = env::args().skip(1);
    let is_asked = arguments.next().is_some_and(|first| first == TRACE);
    arguments.next().filter(|_| is_asked)?.parse().ok()
}

/// Counts hits of a thread of another process and prints the medians on standard output.
///
/// # Errors
/// The thread can't be traced, or it ends before.
pub fn trace(thread: i32) -> io::Result<()> {
    let (mut instructions, mut lines): (Vec<_>, Vec<_>) = hits(Pid::from_raw(thread))?
        .iter()
        .map(|hit| (hit.instructions, hit.lines))
        .unzip();
    instructions.sort_unstable();
    lines.sort_unstable();
    let (instructions, lines) = (instructions[HITS / 2], lines[HITS / 2]);
    writeln!(io::stdout(), "{instructions} {lines}")
}

fn hits(thread: Pid) -> nix::Result<Vec<Steps>> {
    ptrace::seize(thread, Options::empty())?;
    ptrace::interrupt(thread)?;
    stopped(thread)?;
    let mut hits = Vec::with_capacity(HITS);
    // The instructions since the last `KVM_RUN`: their number, and their lines.
    let mut since: Option<(u64, BTreeSet<u64>)> = None;
    while hits.len() < HITS {
        let registers = ptrace::getregs(thread)?;
        let calls = registers.rax == libc::SYS_ioctl as u64 && registers.rsi == KVM_RUN;
        let is_run = calls && {
            let code = ptrace::read(thread, registers.rip as ptrace::AddressType)?;
            code as u16 == SYSCALL
        };
        match (&mut since, is_run) {
            (Some((instructions, lines)), true) => hits.push(Steps {
                instructions: *instructions,
                lines: lines.len() as u64,
            }),
            (Some((instructions, lines)), false) => {
                *instructions += 1;
                lines.insert(registers.rip / LINE);
            }
            (None, _) => {}
        }
        ptrace::step(thread, None)?;
        stopped(thread)?;
        if is_run {
            since = Some((0, BTreeSet::new()));
        }
    }
    ptrace::detach(thread, None)?;
    Ok(hits)
}

/// Waits until the thread has stopped.
fn stopped(thread: Pid) -> nix::Result<()> {
    match waitpid(thread, Some(WaitPidFlag::__WALL))? {
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => Err(Errno::ESRCH),
        _ => Ok(()),
    }
}
