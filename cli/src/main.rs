//! `vmprobe`: boots guests, probes their kernels and shows what the probes see.

mod boot_timeline;
mod certificates;
mod ci;
mod cli;
mod client_configuration;
mod cloud_init;
mod commands;
mod failure;
mod host_root;
mod output;
mod paths;
mod render;
mod server_process;
mod tail;
mod terminal;
mod tracing;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use vmprobe_command_line::{completions, write_manual};

use crate::cli::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let own_failure = cli.command.failure_code();
    match start(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.exit_code().unwrap_or(own_failure))
        }
    }
}

fn start(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Doctor(doctor) => Err(commands::doctor::replace_this_process(&doctor)),
        Command::Completions { shell } => {
            let script = completions(Cli::command(), shell);
            let written = io::stdout().write_all(&script);
            written.map(|()| 0).map_err(Failure::Output)
        }
        Command::Manual { folder } => {
            write_manual(Cli::command(), "vmprobe", &folder)?;
            Ok(0)
        }
        command => run(command),
    }
}

fn run(command: Command) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let result = runtime.block_on(commands::dispatch(command));
    // A read of standard input that never returns would hold an ordinary shutdown for ever.
    runtime.shutdown_background();
    result
}
