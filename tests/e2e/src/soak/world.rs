//! What the clients of a soak share.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tempfile::TempDir;
use vmprobe_client::Client;

use super::actions::Action;
use super::guest::Guest;
use crate::context::Context;
use crate::server::Server;
use crate::test::Failure;

/// Names of the guests that run all the time.
const GUESTS: [&str; 2] = ["one", "two"];

/// A server with two guests.
#[derive(Debug)]
pub struct World {
    pub server: Server,
    pub guests: [Guest; 2],
    /// The `vmprobe` program.
    pub vmprobe: PathBuf,
    /// A client holds it shared during an action; the checks at an epoch's end hold it exclusively.
    pub gate: tokio::sync::RwLock<()>,
    /// Held by a client that pauses a guest: two such clients would undo each other's pauses.
    pub pausing: tokio::sync::Mutex<()>,
    /// The actions that clients do; all of them if it is empty.
    pub only: Vec<Action>,
    /// How often each action was done.
    done: Mutex<BTreeMap<&'static str, u64>>,
    folder: TempDir,
}

impl World {
    /// Starts the server and both guests.
    ///
    /// # Errors
    /// If one of them doesn't start.
    pub async fn start(cx: &Context, only: Vec<Action>) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let path = |name: &str| folder.path().join(name);
        let log = File::create(path("log")).map_err(Failure::io("make a file for the log"))?;
        let server = Server::start_with(cx, |command| {
            command.arg("--images").arg(path("images")).stderr(log);
        })?;
        let client = server.client().await?;
        let [one, two] = GUESTS;
        let kernel = path("kernel");
        let guests = [
            Guest::start(&client, one, &kernel).await?,
            Guest::start(&client, two, &kernel).await?,
        ];
        Ok(Self {
            server,
            guests,
            vmprobe: cx.program("vmprobe"),
            gate: tokio::sync::RwLock::default(),
            pausing: tokio::sync::Mutex::default(),
            only,
            done: Mutex::default(),
            folder,
        })
    }

    /// Makes a connection of its own, which is closed when it is dropped.
    ///
    /// # Errors
    /// If the server doesn't answer.
    pub async fn connect(&self) -> Result<Client, Failure> {
        self.server.client().await
    }

    /// The path of a file that clients may make.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the server listens.
    pub fn socket(&self) -> &Path {
        let endpoint = self.server.endpoint.as_str();
        Path::new(endpoint.strip_prefix("unix:").unwrap_or(endpoint))
    }

    /// Returns what the server and the processes of its VMs have logged.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn log(&self) -> Result<String, Failure> {
        std::fs::read_to_string(self.file("log")).map_err(Failure::io("read the log"))
    }

    /// Counts an action.
    pub fn count(&self, action: &'static str) {
        *self.done.lock().entry(action).or_default() += 1;
    }

    /// How often each action was done.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.done.lock().clone()
    }
}
