//! What commands begin with and end by: a VM to talk to, and being asked to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};
use vmprobe_client::Client;

use crate::cli::TargetArgs;
use crate::failure::Failure;

/// Connects, and finds out which VM is meant.
pub async fn reach(target: &TargetArgs) -> Result<(Client, String), Failure> {
    let client = target.server.connect().await?;
    if let Some(vm) = &target.vm {
        return Ok((client, vm.clone()));
    }
    let mut names: Vec<String> = client
        .list_vms()
        .await?
        .into_iter()
        .map(|vm| vm.name)
        .collect();
    let server = target.server.endpoint()?;
    match names.len() {
        0 => Err(Failure::NoVm { server }),
        1 => Ok((client, names.remove(0))),
        _ => Err(Failure::SeveralVms {
            server,
            names: names.join(", "),
        }),
    }
}

/// The signals that ask this process to end. From [`Signals::listen`] on they do nothing by themselves.
#[derive(Debug)]
pub struct Signals(Option<[(Signal, u8); 3]>);

impl Signals {
    /// Begins to listen.
    pub fn listen() -> Self {
        let kinds = [
            (SignalKind::interrupt(), 2),
            (SignalKind::terminate(), 15),
            (SignalKind::hangup(), 1),
        ];
        let [interrupt, terminate, hang_up] =
            kinds.map(|(kind, number)| signal(kind).map(|signal| (signal, number)));
        Self(match (interrupt, terminate, hang_up) {
            (Ok(interrupt), Ok(terminate), Ok(hang_up)) => Some([interrupt, terminate, hang_up]),
            // Signals without a listener still end the process, but without the cleanup.
            _ => None,
        })
    }

    /// Returns with a failure for each signal.
    pub async fn next(&mut self) -> Failure {
        let Some([interrupt, terminate, hang_up]) = &mut self.0 else {
            return std::future::pending().await;
        };
        Failure::Signal(tokio::select! {
            _ = interrupt.0.recv() => interrupt.1,
            _ = terminate.0.recv() => terminate.1,
            _ = hang_up.0.recv() => hang_up.1,
        })
    }
}

/// Returns with a failure when this process is asked to end.
pub async fn interrupted() -> Failure {
    Signals::listen().next().await
}
