//! One server of a fleet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use vmprobe_proto::v1::VmState;
use wildmatch::WildMatch;

use super::message::{FleetMessage, FleetOptions, Host, Told};
use super::vm::{self, Standing};
use crate::{Client, ClientError};

/// How often the client looks for new VMs on a server.
const LOOK: Duration = Duration::from_secs(1);
/// How long the client waits before it asks a silent server again. The pause grows from the first
/// to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Follows a server until the fleet is dropped.
pub(super) async fn follow(
    host: Host,
    pattern: WildMatch,
    options: Arc<FleetOptions>,
    to: Sender<Told>,
) {
    let name: Arc<str> = host.name.as_str().into();
    let mut standing = HashMap::new();
    let (mut pause, mut is_away) = (FIRST_PAUSE, false);
    loop {
        let why = match Client::connect_with(&host.endpoint, &host.credentials).await {
            Ok(client) => {
                if std::mem::take(&mut is_away) {
                    let back = FleetMessage::Back {
                        host: Arc::clone(&name),
                    };
                    if to.send(Told::Message(back)).await.is_err() {
                        return;
                    }
                }
                pause = FIRST_PAUSE;
                let mut connected = Connected {
                    host: &name,
                    client: &client,
                    pattern: &pattern,
                    options: &options,
                    standing: &mut standing,
                    to: &to,
                };
                connected.follow().await
            }
            Err(error) => error,
        };
        if !is_away {
            is_away = true;
            let away = FleetMessage::Away {
                host: Arc::clone(&name),
                reason: why.to_string(),
            };
            if to.send(Told::Message(away)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = to.closed() => return,
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// A connection to a server.
struct Connected<'a> {
    host: &'a Arc<str>,
    client: &'a Client,
    pattern: &'a WildMatch,
    options: &'a Arc<FleetOptions>,
    /// The states of its VMs that were followed before.
    standing: &'a mut HashMap<String, Standing>,
    to: &'a Sender<Told>,
}

impl Connected<'_> {
    /// Follows the server's VMs until the connection breaks. Returns the reason.
    async fn follow(&mut self) -> ClientError {
        let mut vms = JoinSet::new();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {
                    if let Err(error) = self.look(&mut vms).await {
                        // The VMs' streams break as well, and their tasks return their states.
                        while let Some(ended) = vms.join_next().await {
                            self.note(ended.ok());
                        }
                        return error;
                    }
                }
                Some(ended) = vms.join_next() => {
                    let ended = ended.ok();
                    if matches!(ended, Some((_, Standing::New | Standing::Left(_)))) {
                        // The VM's server may have gone.
                        looks.reset_immediately();
                    }
                    self.note(ended);
                }
                () = self.to.closed() => {
                    while vms.join_next().await.is_some() {}
                    return ClientError::Disconnected("nobody follows it".into());
                }
            }
        }
    }

    /// Begins to follow new VMs, and those that were followed before.
    async fn look(&mut self, vms: &mut JoinSet<(String, Standing)>) -> Result<(), ClientError> {
        let there = self.client.list_vms().await?;
        // VMs that are gone are removed, as a new VM may get the name.
        let is_there = |name: &str| there.iter().any(|vm| vm.name == name);
        let gone = self.standing.extract_if(|name, _| !is_there(name));
        for (_, standing) in gone.collect::<Vec<_>>() {
            if let Standing::Left(left) = standing {
                left.tell_gap("the VM is gone", self.to).await;
            }
        }
        for vm in there {
            if !self.pattern.matches(&vm.name) {
                continue;
            }
            let has_ended = vm.state() == VmState::Ended;
            let standing = match self.standing.get_mut(&vm.name) {
                Some(Standing::Followed | Standing::Refused) => continue,
                // It stays so until another VM has its name.
                Some(Standing::Ended) if has_ended => continue,
                Some(left) => std::mem::replace(left, Standing::Followed),
                None if has_ended => continue,
                None => {
                    let name = vm.name.clone();
                    self.standing.insert(name, Standing::Followed);
                    Standing::New
                }
            };
            let (host, client) = (Arc::clone(self.host), self.client.clone());
            let (options, to) = (Arc::clone(self.options), self.to.clone());
            vms.spawn(async move {
                let name = vm.name.clone();
                let end = vm::follow(host, client, vm, &options, standing, &to).await;
                (name, end)
            });
        }
        Ok(())
    }

    fn note(&mut self, ended: Option<(String, Standing)>) {
        let Some((name, end)) = ended else { return };
        if let Standing::Left(left) = &end {
            left.wait(self.options.window, self.to.clone());
        }
        self.standing.insert(name, end);
    }
}
