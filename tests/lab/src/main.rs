//! `lab setup` makes all that the lab needs; `lab run` runs one static program in it; `lab test-kernel` makes a kernel
//! that tests itself, and `lab debian-disk` a disk with a distribution on it.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lab::{BochsCpu, Emulator, Exit, Lab};

/// Upstream KVM inside an emulated CPU, on any machine.
#[derive(Debug, Parser)]
#[command(name = "lab")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build QEMU and Bochs and fetch the kernels, unless the cache has them.
    Setup,
    /// Build the kernel that tests itself and finds its own faults, unless the cache has it, and print its path.
    TestKernel,
    /// Make the disk with Debian on it, unless the cache has it, and print its path.
    DebianDisk,
    /// Run a statically linked program as root in the lab machine; its exit status becomes ours.
    Run(Run),
}

#[derive(Debug, Args)]
struct Run {
    /// Copy a file into the machine.
    #[arg(long = "file", value_name = "HOST:GUEST", value_parser = parse_file)]
    files: Vec<(PathBuf, String)>,
    /// Set an environment variable of the program.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_env)]
    env: Vec<(String, String)>,
    /// Write what the program left in its results file to this file.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// The machine's CPU.
    #[arg(long, value_enum, default_value_t = Vendor::Amd)]
    lab: Vendor,
    /// Model of an Intel CPU, as Bochs names it.
    #[arg(long, default_value_t = BochsCpu::default().model)]
    model: String,
    /// Instructions that each of several Intel CPUs runs in turn.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=32),
          default_value_t = BochsCpu::default().quantum)]
    quantum: u8,
    /// Instructions of an Intel CPU in a second of the machine's time.
    #[arg(long, default_value_t = BochsCpu::default().ips)]
    ips: u32,
    /// CPUs of the machine.
    #[arg(long, default_value_t = Lab::CPUS)]
    smp: u8,
    /// Memory of the machine.
    #[arg(long, value_name = "MIB", default_value_t = 3072)]
    memory: u32,
    /// Kill the machine after this time.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    time_limit: u64,
    /// Show the machine's kernel console on standard error.
    #[arg(long)]
    console: bool,
    /// The program and its arguments. A program that is a file here is copied in.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Whose CPU is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Vendor {
    /// QEMU's, with SVM.
    Amd,
    /// Bochs', with VMX.
    Intel,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup => setup(),
        Command::TestKernel => test_kernel(),
        Command::DebianDisk => debian_disk(),
        Command::Run(run) => run_program(run),
    };
    result.unwrap_or_else(|error| {
        let mut text = format!("lab: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        say(&text);
        ExitCode::FAILURE
    })
}

fn setup() -> Result<ExitCode, Box<dyn Error>> {
    let kernels = lab::ensure_kernels()?;
    let qemu = lab::ensure_qemu()?;
    let bochs = lab::ensure_bochs()?;
    say(&format!("lab: QEMU {}", qemu.program.display()));
    say(&format!("lab: Bochs {}", bochs.program.display()));
    for kernel in [kernels.v6_1, kernels.v6_12] {
        let path = kernel.vmlinuz.display();
        say(&format!(
            "lab: kernel {} ({}) {path}",
            kernel.release, kernel.package_version
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn test_kernel() -> Result<ExitCode, Box<dyn Error>> {
    let kernel = lab::ensure_test_kernel()?;
    say(&format!("lab: test kernel of {}", kernel.source));
    writeln!(std::io::stdout(), "{}", kernel.vmlinuz.display())?;
    Ok(ExitCode::SUCCESS)
}

fn debian_disk() -> Result<ExitCode, Box<dyn Error>> {
    let disk = lab::ensure_debian_disk()?;
    writeln!(std::io::stdout(), "{}", disk.display())?;
    Ok(ExitCode::SUCCESS)
}

fn run_program(run: Run) -> Result<ExitCode, Box<dyn Error>> {
    let mut lab = Lab::new(run.command);
    lab.emulator = match run.lab {
        Vendor::Amd => Emulator::Qemu,
        Vendor::Intel => Emulator::Bochs(BochsCpu {
            model: run.model,
            quantum: run.quantum,
            ips: run.ips,
        }),
    };
    lab.files = run.files;
    lab.env = run.env;
    lab.smp = run.smp;
    lab.memory_mib = run.memory;
    lab.time_limit = Duration::from_secs(run.time_limit);
    lab.live_console = run.console;
    if let Some(program) = lab.command.first_mut()
        && Path::new(program.as_str()).is_file()
        && let Some(name) = Path::new(program.as_str()).file_name()
    {
        let inside = format!("/bin/{}", name.to_string_lossy());
        lab.files.push((PathBuf::from(&*program), inside.clone()));
        *program = inside;
    }
    let done = lab.run()?;
    let (exit, bytes) = (done.exit, done.results.len());
    if let Some(path) = run.results {
        std::fs::write(&path, done.results)
            .map_err(|e| format!("can't write the results to {}: {e}", path.display()))?;
    }
    say(&format!(
        "lab: {exit:?}, {bytes} bytes of results, {:.1?}",
        done.duration
    ));
    Ok(match exit {
        Exit::Code(code) => u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from),
        // As shells do.
        Exit::Signal(signal) => ExitCode::from(128u8.saturating_add(signal as u8)),
    })
}

fn say(text: &str) {
    // If standard error is closed, the lab goes on.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn parse_file(text: &str) -> Result<(PathBuf, String), String> {
    match text.rsplit_once(':') {
        Some((host, guest)) if !host.is_empty() && guest.starts_with('/') => {
            Ok((host.into(), guest.into()))
        }
        _ => Err("give it as HOST:GUEST, with GUEST an absolute path".into()),
    }
}

fn parse_env(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give it as NAME=VALUE")?;
    Ok((name.into(), value.into()))
}
