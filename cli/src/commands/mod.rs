//! One file for each group of commands.

pub mod certs;
mod console;
pub mod doctor;
mod dump;
pub mod event_file;
mod export;
mod gdb;
pub mod guest;
mod image;
pub mod latency;
mod list;
mod probe;
mod record;
pub mod run;
mod run_root;
pub mod session;
mod stack;
mod symbols;
mod top;
mod trace;
mod types;
mod vm;

use crate::boot_timeline;
use crate::ci;
use crate::cli::Command;
use crate::failure::Failure;
use crate::output::print;

/// Runs any command but `doctor`. Returns its exit code.
pub async fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(run) if !run.root.command.is_empty() => return run_root::run(*run).await,
        Command::Run(run) => return run::run(*run).await,
        Command::BootTimeline(timeline) => return boot_timeline::boot_timeline(timeline).await,
        Command::Ci(asked) => return ci::ci(&asked).await,
        Command::Vm(vm) => return vm::vm(vm).await,
        Command::Image(image) => image::image(&image).await?,
        Command::Probe(probe) => probe::probe(probe).await?,
        Command::Trace(trace) => trace::trace(trace).await?,
        Command::Export(asked) => export::export(*asked).await?,
        Command::Record(record) => record::record(&record).await?,
        Command::Stack(stack) => stack::stack(&stack).await?,
        Command::Flame(flame) => record::flame(&flame).await?,
        Command::Latency(latency) => latency::latency(&latency).await?,
        Command::Top(top) => top::top(&top).await?,
        Command::List(list) => list::list(&list).await?,
        Command::Types(types) => types::types(&types).await?,
        Command::Symbols(symbols) => symbols::symbols(symbols).await?,
        Command::Dump(dump) => dump::dump(&dump).await?,
        Command::Gdb(gdb) => gdb::gdb(&gdb).await?,
        Command::Console(target) => console::console(&target).await?,
        Command::Certs(command) => certs::certs(&command)?,
        Command::CiJob(asked) => print([ci::manifests(&asked)?.trim_end()])?,
        Command::Doctor(doctor) => return Err(doctor::replace_this_process(&doctor)),
        // These commands need no server, and have been done.
        Command::Completions { .. } | Command::Manual { .. } => {}
    }
    Ok(0)
}
