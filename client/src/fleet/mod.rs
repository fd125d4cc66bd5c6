//! Many servers at once: the same probes in their VMs, and all events in the order of their times.
//!
//! Each server has a task of its own, which finds its VMs, registers the probes in each, and follows them. If a server
//! goes away, the fleet reports it, and the task tries again until the server is back. Streams then go on where they
//! were, as far as the server has kept their events.

mod host;
mod merge;
mod message;
mod vm;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use wildmatch::WildMatch;

use merge::Merge;
use message::Told;
pub use message::{FleetMessage, FleetOptions, FleetVm, Host};

/// Messages of all servers on their way.
const AHEAD: usize = 1024;
/// How long servers may take to remove probes.
const LEAVE: Duration = Duration::from_secs(5);

/// The messages of all servers.
#[derive(Debug)]
pub struct Fleet {
    told: mpsc::Receiver<Told>,
    /// Events that wait for earlier ones, each with its place among those of its VM.
    merge: Merge<(FleetMessage, OwnedSemaphorePermit)>,
    hosts: JoinSet<()>,
}

impl Fleet {
    /// Begins to follow these servers.
    #[must_use]
    pub fn follow(hosts: Vec<Host>, options: FleetOptions) -> Self {
        let (sender, told) = mpsc::channel(AHEAD);
        let options = Arc::new(options);
        let mut tasks = JoinSet::new();
        for host in hosts {
            let pattern = WildMatch::new(&options.vms);
            let (options, sender) = (Arc::clone(&options), sender.clone());
            tasks.spawn(host::follow(host, pattern, options, sender));
        }
        Self {
            told,
            merge: Merge::default(),
            hosts: tasks,
        }
    }

    /// Returns the next message: events in the order of their times, and all others at once. `None` if there is no
    /// server.
    pub async fn next(&mut self) -> Option<FleetMessage> {
        loop {
            if let Some((event, _)) = self.merge.pop() {
                return Some(event);
            }
            match self.told.recv().await? {
                Told::Message(message) => return Some(message),
                Told::Event {
                    source,
                    unix_ns,
                    event,
                    place,
                } => self.merge.push(source, unix_ns, (event, place)),
                Told::Begins {
                    source,
                    unix_ns,
                    heard,
                } => {
                    self.merge.reach(source, unix_ns);
                    let _it_may_have_gone = heard.send(());
                }
                Told::Reached { source, unix_ns } => self.merge.reach(source, unix_ns),
                Told::Silent { source } => self.merge.silence(source),
            }
        }
    }

    /// Removes the probes from all VMs, as far as their servers answer soon. Without this call, the probes stay for as
    /// long as [`FleetOptions::linger`] says.
    pub async fn close(mut self) {
        self.told.close();
        while self.told.try_recv().is_ok() {}
        self.merge = Merge::default();
        let ended = async { while self.hosts.join_next().await.is_some() {} };
        let _the_rest_lingers = timeout(LEAVE, ended).await;
    }

    /// Returns how many events were returned after later ones, as their server was silent for longer than the window.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.merge.late()
    }
}
