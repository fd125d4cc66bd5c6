//! What commands begin with and end by: a VM to talk to, and being asked to stop.

use tokio::signal::unix::{SignalKind, signal};
use vmprobe_client::Client;

use crate::cli::TargetArgs;
use crate::failure::Failure;

/// Connects, and finds out which VM is meant.
pub async fn reach(target: &TargetArgs) -> Result<(Client, String), Failure> {
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
