//! `vmprobe export`, at work.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::sleep;

use super::guest::DEFINITION;
use crate::context::Context;
use crate::process::Process;
use crate::server::Server;
use crate::test::{Failure, wrong};

/// The host's name in events.
pub const HOST: &str = "kvm1.example";
/// Time between two looks at what the command has said.
const AGAIN: Duration = Duration::from_millis(20);

/// The command. It is killed when this is dropped.
pub struct Export {
    child: Child,
    notes: PathBuf,
}

impl Export {
    /// Starts it for a server by its name in a configuration, with these arguments. The shell runs `before` first.
    pub fn start(
        cx: &Context,
        server: &Server,
        folder: &Path,
        before: &str,
        args: &[&str],
    ) -> Result<Self, Failure> {
        let configuration = folder.join("config.toml");
        let named = format!("[servers.\"{HOST}\"]\naddress = \"{}\"\n", server.endpoint);
        fs::write(&configuration, named).map_err(Failure::io("write a configuration"))?;
        let notes = folder.join("notes");
        let written = File::create(&notes).map_err(Failure::io("make a file"))?;
        let child = Command::new("sh")
            .args(["-c", &format!("{before}exec \"$@\""), "sh"])
            .arg(cx.program("vmprobe"))
            .args(["export", DEFINITION, "--hosts", HOST])
            .args(args)
            .env("VMPROBE_CONFIG", &configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(written)
            .spawn()
            .map_err(Failure::io("run vmprobe"))?;
        Ok(Self { child, notes })
    }

    /// Returns what it has said.
    pub fn notes(&self) -> Result<String, Failure> {
        fs::read_to_string(&self.notes).map_err(Failure::io("read what vmprobe says"))
    }

    /// Waits until it has said these words.
    pub async fn says(&mut self, words: &str) -> Result<(), Failure> {
        loop {
            let ended = self.ended()?;
            let notes = self.notes()?;
            if notes.contains(words) {
                return Ok(());
            }
            if let Some(status) = ended {
                return Err(wrong!("it ended ({status}) without {words:?}: {notes}"));
            }
            sleep(AGAIN).await;
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        let ended = self.child.try_wait();
        ended.map_err(Failure::io("look after vmprobe"))
    }

    /// Asks it to end.
    pub fn interrupt(&self) -> Result<(), Failure> {
        Process(self.child.id()).signal(libc::SIGINT)
    }

    /// Waits until it has ended, and returns its exit code.
    pub async fn end(&mut self) -> Result<Option<i32>, Failure> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status.code());
            }
            sleep(AGAIN).await;
        }
    }
}

/// Returns the number before some words in what it has said.
pub fn number(notes: &str, words: &str) -> Result<u64, Failure> {
    let before = notes.split(words).next().filter(|before| *before != notes);
    let number = before.and_then(|before| before.rsplit(' ').next()?.parse().ok());
    number.ok_or_else(|| wrong!("there is no number before {words:?}: {notes}"))
}

impl Drop for Export {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _ = self.child.wait();
    }
}
