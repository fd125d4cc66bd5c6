//! A person at the console of `vmprobe run`: what is typed goes to its input, and what its output shows is waited for.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::test::{Failure, wrong};

/// What `vmprobe run` says of its server, on standard error.
const SERVER: &str = "this guest's server is ";
/// Bytes of the console that a failure shows.
const SHOWN: usize = 3000;

/// A guest on a terminal. It is killed when this is dropped.
pub struct Terminal {
    child: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Where the guest's server listens.
    pub endpoint: String,
    /// What has been shown and not yet been waited for.
    shown: Vec<u8>,
}

impl Terminal {
    /// Starts `vmprobe run`.
    ///
    /// # Errors
    /// If it ends before it has printed its server's address.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Failure::io("start vmprobe run"))?;
        let none = || wrong!("vmprobe run lacks a stream");
        let input = child.stdin.take().ok_or_else(none)?;
        let output = follow(child.stdout.take().ok_or_else(none)?);
        let endpoint = server(child.stderr.take().ok_or_else(none)?)?;
        Ok(Self {
            child,
            input,
            output,
            endpoint,
            shown: Vec::new(),
        })
    }

    /// Types a line.
    ///
    /// # Errors
    /// If `vmprobe run` no longer reads its input.
    pub fn type_line(&mut self, line: &str) -> Result<(), Failure> {
        self.type_bytes(format!("{line}\n").as_bytes())
    }

    /// Types bytes.
    ///
    /// # Errors
    /// If `vmprobe run` no longer reads its input.
    pub fn type_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let typed = self.input.write_all(bytes);
        let typed = typed.and_then(|()| self.input.flush());
        typed.map_err(Failure::io("type on the console"))
    }

    /// Waits until a text is shown, and returns what was shown before it.
    ///
    /// # Errors
    /// If the guest ends first.
    pub fn wait_for(&mut self, text: &str) -> Result<String, Failure> {
        loop {
            let found = self
                .shown
                .windows(text.len())
                .position(|it| it == text.as_bytes());
            if let Some(at) = found {
                let mut before: Vec<u8> = self.shown.drain(..at + text.len()).collect();
                before.truncate(at);
                return Ok(String::from_utf8_lossy(&before).into_owned());
            }
            match self.output.recv() {
                Ok(chunk) => self.shown.extend(chunk),
                Err(_) => {
                    let last = &self.shown[self.shown.len().saturating_sub(SHOWN)..];
                    let last = String::from_utf8_lossy(last);
                    return Err(wrong!("the guest has ended before {text:?}: {last}"));
                }
            }
        }
    }

    /// Logs in with a password where the guest asks for a login, up to the end of the shell's prompt.
    ///
    /// # Errors
    /// If the guest ends first.
    pub fn log_in(
        &mut self,
        asked: &str,
        (user, password): (&str, &str),
        prompt: &str,
    ) -> Result<(), Failure> {
        self.wait_for(asked)?;
        self.type_line(user)?;
        self.wait_for("Password: ")?;
        self.type_line(password)?;
        self.wait_for(prompt)?;
        Ok(())
    }

    /// Has the shell run a command, and returns the command's output. Its exit code must be 0.
    ///
    /// # Errors
    /// If the exit code is another one, or the guest ends first.
    pub fn command(&mut self, command: &str) -> Result<String, Failure> {
        // The terminal echoes what is typed, so the typed line must not contain the marks themselves.
        self.type_line(&format!("echo \"[be\"gin]; {command}; echo \"[en\"d=$?]"))?;
        self.wait_for("[begin]\r\n")?;
        let output = self.wait_for("[end=")?;
        let code = self.wait_for("]")?;
        match code.as_str() {
            "0" => Ok(output.replace('\r', "")),
            _ => Err(wrong!("{command} has ended with {code}: {output}")),
        }
    }

    /// Waits for the guest's end and returns the exit code of `vmprobe run`.
    ///
    /// # Errors
    /// If it can't be waited for.
    pub fn end(mut self) -> Result<Option<i32>, Failure> {
        while self.output.recv().is_ok() {}
        let status = self.child.wait();
        Ok(status.map_err(Failure::io("wait for vmprobe run"))?.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_has_ended = self.child.wait();
    }
}

/// Sends on all that is read, and shows it in the test's output line by line.
fn follow(mut from: ChildStdout) -> Receiver<Vec<u8>> {
    let (to, chunks) = channel();
    thread::spawn(move || {
        let (mut buffer, mut line) = ([0; 4096], Vec::new());
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            for byte in &buffer[..len] {
                match byte {
                    b'\n' => {
                        crate::note(&format!("guest | {}", String::from_utf8_lossy(&line)));
                        line.clear();
                    }
                    b'\r' => {}
                    other => line.push(*other),
                }
            }
            if to.send(buffer[..len].to_vec()).is_err() {
                break;
            }
        }
    });
    chunks
}

/// Waits for the line about the server. Later lines are shown in the test's output.
fn server(errors: ChildStderr) -> Result<String, Failure> {
    let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
    let mut said = Vec::new();
    for line in lines.by_ref() {
        if let Some((_, endpoint)) = line.split_once(SERVER) {
            let endpoint = endpoint.to_owned();
            thread::spawn(move || lines.for_each(|line| crate::note(&line)));
            return Ok(endpoint);
        }
        said.push(line);
    }
    Err(wrong!("vmprobe run has ended: {}", said.join("\n")))
}
