//! The host's end of a command's input and output.

use std::io;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy};
use tokio::net::{UnixListener, UnixStream};
use vmprobe_init::{Port, Told};

use super::error::RootError;
use crate::terminal::{self, Input};

/// How a command has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By itself, with this exit code; 128 and the signal's number where a signal ended it, as shells tell it.
    Ended(u8),
    /// It could not be started.
    NotStarted(String),
}

/// What a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandInput {
    /// The standard input of this process.
    Own,
    /// Nothing.
    Nothing,
}

/// Where the guest connects to.
pub struct Streams {
    /// In the order of [`Port::ALL`].
    listeners: [UnixListener; Port::ALL.len()],
}

impl Streams {
    /// Begins to listen behind `socket`, that of the guest's virtio sockets.
    ///
    /// # Errors
    /// A socket can't be made.
    pub fn listen(socket: &Path) -> Result<Self, RootError> {
        let listen = |port: Port| {
            let mut path = socket.as_os_str().to_owned();
            path.push(format!("_{}", port.number()));
            UnixListener::bind(path)
        };
        let [a, b, c, d] = Port::ALL.map(listen);
        let listeners = (|| io::Result::Ok([a?, b?, c?, d?]))();
        Ok(Self {
            listeners: listeners.map_err(RootError::Streams)?,
        })
    }

    /// Waits until the guest has connected.
    ///
    /// # Errors
    /// A socket fails.
    pub async fn connected(self) -> Result<Connected, RootError> {
        let [control, input, output, errors] = &self.listeners;
        Ok(Connected {
            control: accept(control).await?,
            input: accept(input).await?,
            output: accept(output).await?,
            errors: accept(errors).await?,
        })
    }
}

/// A command's streams. They end with the guest.
pub struct Connected {
    control: UnixStream,
    input: UnixStream,
    output: UnixStream,
    errors: UnixStream,
}

impl Connected {
    /// Copies until the command has ended and all its output is written. The command reads this process' input, or
    /// nothing. Returns none if the guest has ended before the command.
    ///
    /// # Errors
    /// A socket fails, or output can't be written.
    pub async fn serve(
        self,
        input: CommandInput,
        output: impl AsyncWrite + Unpin + Send + 'static,
        errors: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Option<Outcome>, RootError> {
        tokio::spawn(copy_in(input, self.input));
        let written = tokio::spawn(copy_out(self.output, output));
        let errors = tokio::spawn(copy_out(self.errors, errors));
        let outcome = ended(BufReader::new(self.control)).await?;
        for copied in [written, errors] {
            copied
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)))
                .map_err(RootError::Output)?;
        }
        Ok(outcome)
    }
}

async fn accept(listener: &UnixListener) -> Result<UnixStream, RootError> {
    let (stream, _) = listener.accept().await.map_err(RootError::Streams)?;
    Ok(stream)
}

/// Reads what the guest tells until it tells the command's end. The connection closes then, at which the guest ends.
async fn ended(mut control: BufReader<UnixStream>) -> Result<Option<Outcome>, RootError> {
    let mut line = String::new();
    loop {
        line.clear();
        let read = control.read_line(&mut line).await;
        if read.map_err(RootError::Streams)? == 0 {
            return Ok(None);
        }
        let told = serde_json::from_str(&line);
        return Ok(Some(
            match told.map_err(|error| RootError::Streams(error.into()))? {
                Told::Started => continue,
                Told::Exited { code } => Outcome::Ended(code),
                Told::Killed { signal } => {
                    Outcome::Ended(u8::try_from(128 + signal).unwrap_or(u8::MAX))
                }
                Told::Failed { reason } => Outcome::NotStarted(reason),
            },
        ));
    }
}

/// Copies standard input. Its end is the end of the command's input as well.
async fn copy_in(from: CommandInput, mut to: UnixStream) {
    // A process in the background would be stopped by reading its terminal.
    if from == CommandInput::Own && terminal::input() != Input::Background {
        // A command that reads no more has closed its input.
        let _ended = copy(&mut tokio::io::stdin(), &mut to).await;
    }
    let _it_may_be_gone = to.shutdown().await;
    // To the guest, a connection that is closed both ways is one that broke.
    std::future::pending::<()>().await;
}

async fn copy_out(mut from: UnixStream, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    copy(&mut from, &mut to).await?;
    to.flush().await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn guest(socket: &Path, told: &[Told]) {
        let connect = |port: Port| {
            let path = format!("{}_{}", socket.display(), port.number());
            async move { UnixStream::connect(path).await.unwrap() }
        };
        let mut control = connect(Port::Control).await;
        let _input = connect(Port::Input).await;
        drop((connect(Port::Output).await, connect(Port::Errors).await));
        for told in told {
            let line = serde_json::to_string(told).unwrap();
            control
                .write_all(format!("{line}\n").as_bytes())
                .await
                .unwrap();
        }
        let mut rest = Vec::new();
        control.read_to_end(&mut rest).await.unwrap();
    }

    async fn serve(streams: Streams) -> Result<Option<Outcome>, RootError> {
        let connected = streams.connected().await?;
        let nothing = CommandInput::Nothing;
        connected
            .serve(nothing, tokio::io::sink(), tokio::io::sink())
            .await
    }

    #[tokio::test]
    async fn the_end_that_the_guest_tells_of_is_the_command_s() {
        for (told, outcome) in [
            (Told::Exited { code: 7 }, Outcome::Ended(7)),
            (Told::Killed { signal: 9 }, Outcome::Ended(137)),
            (
                Told::Failed {
                    reason: "no".to_owned(),
                },
                Outcome::NotStarted("no".to_owned()),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("vsock");
            let streams = Streams::listen(&socket).unwrap();
            let told = [Told::Started, told];
            let served = serve(streams);
            let (served, ()) = tokio::join!(served, guest(&socket, &told));
            assert_eq!(served.unwrap(), Some(outcome));
        }
    }

    #[tokio::test]
    async fn a_guest_that_goes_without_a_word_has_told_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("vsock");
        let streams = Streams::listen(&socket).unwrap();
        let path = |port: Port| format!("{}_{}", socket.display(), port.number());
        let silent = async {
            for port in Port::ALL {
                drop(UnixStream::connect(path(port)).await.unwrap());
            }
        };
        let served = serve(streams);
        let (served, ()) = tokio::join!(served, silent);
        assert_eq!(served.unwrap(), None);
    }
}
