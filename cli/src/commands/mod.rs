//! One file for each group of commands.

mod console;
pub mod doctor;
pub mod guest;
mod probe;
pub mod run;
pub mod session;
mod symbols;
pub mod trace;
mod vm;

use crate::boot_timeline;
use crate::cli::Command;
use crate::failure::Failure;

/// Runs any command but `doctor`, and answers with its exit code.
pub async fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(run) => return run::run(run).await,
        Command::BootTimeline(timeline) => return boot_timeline::boot_timeline(timeline).await,
        Command::Vm(vm) => return vm::vm(vm).await,
        Command::Probe(probe) => probe::probe(probe).await?,
        Command::Trace(trace) => trace::trace(trace).await?,
        Command::Symbols(symbols) => symbols::symbols(symbols).await?,
        Command::Console(target) => console::console(&target).await?,
        Command::Doctor(doctor) => return Err(doctor::replace_this_process(&doctor)),
    }
    Ok(0)
}
