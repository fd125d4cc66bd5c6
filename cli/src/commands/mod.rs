//! One file for each group of commands.

mod console;
pub mod doctor;
pub mod guest;
mod probe;
pub mod run;
mod symbols;
pub mod trace;
mod vm;

use tokio::signal::unix::{SignalKind, signal};
use vmprobe_client::Client;

use crate::boot_timeline;
use crate::cli::{Command, Target};
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

/// Connects, and finds out which VM is meant.
async fn reach(target: &Target) -> Result<(Client, String), Failure> {
    let server = &target.server.server;
    let client = Client::connect(server).await?;
    if let Some(vm) = &target.vm {
        return Ok((client, vm.clone()));
    }
    let mut names: Vec<String> = client
        .list_vms()
        .await?
        .into_iter()
        .map(|vm| vm.name)
        .collect();
    let server = server.clone();
    match names.len() {
        0 => Err(Failure::NoVm { server }),
        1 => Ok((client, names.remove(0))),
        _ => Err(Failure::SeveralVms {
            server,
            names: names.join(", "),
        }),
    }
}

/// Returns with a failure when this process is asked to end.
pub async fn interrupted() -> Failure {
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hang_up)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        // Unheard signals still end the process, only less politely.
        return std::future::pending().await;
    };
    let number = tokio::select! {
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
        _ = hang_up.recv() => 1,
    };
    Failure::Signal(number)
}
