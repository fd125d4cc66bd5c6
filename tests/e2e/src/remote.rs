//! A server for clients that come by TLS, as its owner sets it up by the command line.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use vmprobe_client::{Client, Credentials};

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, check};

/// A server that listens on a socket and by TLS, with certificates of its own.
#[derive(Debug)]
pub struct Remote {
    /// The server.
    pub server: Server,
    /// Where it is reached by TLS.
    pub endpoint: String,
    program: PathBuf,
    folder: TempDir,
}

/// What a program has written on standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Remote {
    /// Starts a server for these clients, each `NAME=ROLE`. `change` can change its command before.
    ///
    /// # Errors
    /// If certificates can't be made, or the server can't be started.
    pub fn start(
        cx: &Context,
        clients: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder for certificates"))?;
        let program = cx.program("vmprobe");
        let mut init = Command::new(&program);
        init.args(["certs", "init", "--dir"])
            .arg(folder.path().join("certs"));
        for client in clients {
            init.args(["--client", client]);
        }
        let made = init.output().map_err(Failure::io("run vmprobe certs"))?;
        check!(made.status.success(), "{}", errors(&made));
        let file = |name: &str| folder.path().join("certs").join(name);
        let server = Server::start_with(cx, |command| {
            command.args(["--listen", "127.0.0.1:0"]);
            command.arg("--tls-cert").arg(file("server.pem"));
            command.arg("--tls-key").arg(file("server.key"));
            command.arg("--tls-client-ca").arg(file("ca.pem"));
            command.arg("--clients").arg(file("clients.toml"));
            change(command);
        })?;
        let endpoint = server.next_endpoint()?;
        Ok(Self {
            server,
            endpoint,
            program,
            folder,
        })
    }

    /// The folder with its certificates.
    pub fn certs(&self) -> PathBuf {
        self.folder.path().join("certs")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.certs().join(name)
    }

    /// Returns a new connection of one of its clients.
    ///
    /// # Errors
    /// If its files aren't there, or the server doesn't answer.
    pub async fn client(&self, name: &str) -> Result<Client, Failure> {
        let read =
            |file: String| fs::read(self.file(&file)).map_err(Failure::io(format!("read {file}")));
        let credentials = Credentials {
            ca: Some(read("ca.pem".to_owned())?),
            identity: Some((read(format!("{name}.pem"))?, read(format!("{name}.key"))?)),
            token: None,
        };
        Ok(Client::connect_with(&self.endpoint, &credentials).await?)
    }

    /// Runs `vmprobe` for one of its clients.
    ///
    /// # Errors
    /// If it can't be run.
    pub fn run(&self, client: &str, arguments: &[&str]) -> Result<Output, Failure> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--server", &self.endpoint]);
        command.arg("--tls-ca").arg(self.file("ca.pem"));
        command
            .arg("--tls-cert")
            .arg(self.file(&format!("{client}.pem")));
        command
            .arg("--tls-key")
            .arg(self.file(&format!("{client}.key")));
        command.stdin(Stdio::null());
        command.output().map_err(Failure::io("run vmprobe"))
    }

    /// As [`run`](Self::run); returns what `vmprobe` has printed.
    ///
    /// # Errors
    /// If it fails.
    pub fn done(&self, client: &str, arguments: &[&str]) -> Result<String, Failure> {
        let output = self.run(client, arguments)?;
        check!(
            output.status.success(),
            "{arguments:?}: {}",
            errors(&output)
        );
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }
}
