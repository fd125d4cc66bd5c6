//! One run of the lab machine (L1): its image, its boot, what comes back.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab_init::{Exit, Module, Task};

use crate::bochs::{BochsError, ensure_bochs};
use crate::cache::{self, CacheError};
use crate::cargo::{BuildError, Program, static_programs};
use crate::emulator::Emulator;
use crate::initramfs::Initramfs;
use crate::kernels::{Kernel, KernelError, ModuleError, ensure_kernels};
use crate::process::{Options, Running};
use crate::qemu::{QemuError, ensure_qemu};
use crate::report::{self, ReportError};
use crate::tool::tail;

/// A program to run in the lab machine, and the machine to run it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lab {
    /// What emulates the machine.
    pub emulator: Emulator,
    /// Virtual CPUs of L1.
    pub smp: u8,
    /// Memory of L1 in MiB. Its files are in it too.
    pub memory_mib: u32,
    /// Files to copy in: path on this machine, absolute path in L1. Permissions are kept.
    pub files: Vec<(PathBuf, String)>,
    /// Programs to run before, like `command`. If one fails, the others still run, but the run counts as failed.
    pub before: Vec<Vec<String>>,
    /// The program, by its path in L1, and its arguments. It must be statically linked.
    pub command: Vec<String>,
    /// Environment variables of the programs. `VMPROBE_RESULTS` is set already: the path of the
    /// file that they may add to, to hand data back.
    pub env: Vec<(String, String)>,
    /// Time from power-on until the program must have ended.
    pub time_limit: Duration,
    /// Whether to copy L1's kernel console to standard error.
    pub live_console: bool,
    /// Where to write L1's kernel console; by default to a file in the cache, which is kept only
    /// if the run fails.
    pub console_log: Option<PathBuf>,
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabRun {
    /// How the program ended.
    pub exit: Exit,
    /// The bytes of the program's results file; empty if it wrote none.
    pub results: Vec<u8>,
    /// From power-on to the program's end.
    pub duration: Duration,
}

/// Why a run gave no results.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no QEMU.
    #[error("the lab's QEMU isn't ready")]
    Qemu(#[from] QemuError),
    /// There is no Bochs.
    #[error("the lab's Bochs isn't ready")]
    Bochs(#[from] BochsError),
    /// There is no kernel.
    #[error("the lab's kernel isn't ready")]
    Kernel(#[from] KernelError),
    /// The lab's kernel lacks a module.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The lab's PID 1 doesn't build.
    #[error("the lab's PID 1 isn't ready")]
    Build(#[from] BuildError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file can't be copied into the machine.
    #[error("can't read {} for the lab machine", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// A file is too large for an initramfs.
    #[error("{} is too large for the lab machine: an initramfs takes files below 4 GiB", .0.display())]
    FileTooLarge(PathBuf),
    /// The machine's image can't be made.
    #[error("can't make the lab machine's image")]
    Image(#[source] io::Error),
    /// The emulator can't be started.
    #[error("can't start the lab's emulator")]
    Start(#[source] io::Error),
    /// The time limit has passed; the machine was killed.
    #[error("the lab ran into its time limit of {limit:?}; last lines of its console, {}:\n{tail}", log.display())]
    TimeLimit {
        /// The limit.
        limit: Duration,
        /// The console's log.
        log: PathBuf,
        /// Its end.
        tail: String,
    },
    /// The machine ended before the program did.
    #[error("the lab machine ended before its program; last lines of its console, {}:\n{tail}", log.display())]
    Ended {
        /// The console's log.
        log: PathBuf,
        /// Its end.
        tail: String,
    },
    /// PID 1 of the machine couldn't run the program.
    #[error("the lab couldn't run the program: {reason} (console: {})", log.display())]
    NotRun {
        /// Why.
        reason: String,
        /// The console's log.
        log: PathBuf,
    },
    /// What came back is garbled, or can't be written on.
    #[error("can't follow the lab's report (console: {})", log.display())]
    Report {
        /// Why.
        source: ReportError,
        /// The console's log.
        log: PathBuf,
    },
}

impl Lab {
    /// Virtual CPUs of L1, by default. One: Bochs runs several in turn, and with two, QEMU now and then (twice in some
    /// 250 guests) goes on executing an int3 in L1's kernel that isn't in memory any more, after that kernel has
    /// patched its own text, and L1 hangs.
    pub const CPUS: u8 = 1;

    /// A machine of QEMU's with one CPU and 3 GiB that runs a program for ten minutes at most.
    #[must_use]
    pub fn new(command: Vec<String>) -> Self {
        Self {
            emulator: Emulator::Qemu,
            smp: Self::CPUS,
            memory_mib: 3072,
            files: Vec::new(),
            before: Vec::new(),
            command,
            env: Vec::new(),
            time_limit: Duration::from_secs(600),
            live_console: false,
            console_log: None,
        }
    }

    /// Boots the machine, runs the program to its end, copies its output to standard output as it
    /// comes, and returns how it ended and what it left as its results.
    ///
    /// # Errors
    /// If something is missing, the machine doesn't get as far as running the program, the time
    /// limit passes, or the output can't be written. A program that fails is no error here.
    pub fn run(&self) -> Result<LabRun, LabError> {
        self.run_to(&mut io::stdout())
    }

    /// As [`Lab::run`], with the program's output written to `output`.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn run_to(&self, output: &mut dyn Write) -> Result<LabRun, LabError> {
        let kernel = ensure_kernels()?.v6_1;
        let [init] = static_programs([Program::bin("lab-init", "lab-init")])?;
        let log = self.log()?;
        let options = Options {
            smp: self.smp,
            memory_mib: self.memory_mib,
            kernel: &kernel.vmlinuz,
            initramfs: self.image(&kernel, &init)?,
            log: &log,
            live_console: self.live_console,
        };
        // The time counts from power-on, so that it doesn't include building an emulator.
        let (running, started) = match &self.emulator {
            Emulator::Qemu => {
                let qemu = ensure_qemu()?;
                (qemu.start(&options), Instant::now())
            }
            Emulator::Bochs(cpu) => {
                let bochs = ensure_bochs()?;
                (bochs.start(cpu, &options), Instant::now())
            }
        };
        let Running { process, report } = running.map_err(LabError::Start)?;
        // The options hold as much memory as the machine's files have bytes.
        drop(options);
        let result = report::read(report, started + self.time_limit, output);
        drop(process);
        let duration = started.elapsed();

        let tail = || {
            tail(&String::from_utf8_lossy(
                &fs::read(&log).unwrap_or_default(),
            ))
        };
        let (exit, results) = result.map_err(|error| match error {
            ReportError::Deadline => LabError::TimeLimit {
                limit: self.time_limit,
                tail: tail(),
                log: log.clone(),
            },
            ReportError::Ended => LabError::Ended {
                tail: tail(),
                log: log.clone(),
            },
            ReportError::NotRun(reason) => LabError::NotRun {
                reason,
                log: log.clone(),
            },
            source => LabError::Report {
                source,
                log: log.clone(),
            },
        })?;
        if self.console_log.is_none() {
            // The log wasn't asked for. It does no harm if it can't be removed.
            let _ = fs::remove_file(&log);
        }
        Ok(LabRun {
            exit,
            results,
            duration,
        })
    }

    /// The machine's initramfs.
    fn image(&self, kernel: &Kernel, init: &Path) -> Result<Vec<u8>, LabError> {
        let read = |path: &Path| fs::read(path).map_err(|e| LabError::File(path.to_owned(), e));
        let mut image = Initramfs::new().file("/init", &read(init)?, 0o755);
        let mut modules = Vec::new();
        // Tests make tap interfaces.
        let others = [("drivers/net/tun", "")];
        for (path, parameters) in self.emulator.kvm_modules().into_iter().chain(others) {
            let name = path.rsplit('/').next().unwrap_or(path);
            let to = format!("/lib/modules/{name}.ko");
            image = image.file(&to, &kernel.module(path)?, 0o644);
            modules.push(Module {
                path: to,
                parameters: parameters.into(),
            });
        }
        for (from, to) in &self.files {
            let file_error = |e| LabError::File(from.clone(), e);
            let metadata = fs::metadata(from).map_err(file_error)?;
            if u32::try_from(metadata.len()).is_err() {
                return Err(LabError::FileTooLarge(from.clone()));
            }
            image = image.file(to, &read(from)?, metadata.permissions().mode() & 0o7777);
        }
        let mut commands = self.before.clone();
        commands.push(self.command.clone());
        let task = Task {
            modules,
            commands,
            env: self.env.clone(),
        }
        .to_json();
        let task = task.map_err(|e| LabError::Image(e.into()))?;
        Ok(image.file(Task::PATH, &task, 0o644).finish())
    }

    /// An empty file for the console.
    fn log(&self) -> Result<PathBuf, LabError> {
        static RUN: AtomicU32 = AtomicU32::new(0);
        let path = match &self.console_log {
            Some(path) => path.clone(),
            None => {
                let dir = cache::cache_dir()?.join("logs");
                cache::make_dir(&dir)?;
                let run = RUN.fetch_add(1, Ordering::Relaxed);
                dir.join(format!("console-{}-{run}.log", std::process::id()))
            }
        };
        cache::write(&path, b"")?;
        Ok(path)
    }
}
