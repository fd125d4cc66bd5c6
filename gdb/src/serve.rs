//! One connection of gdb's.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, MultiThreadStopReason};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use vmprobe_client::v1::GuestStopped;
use vmprobe_client::{ClientError, DebugEvent, DebugSession};

use crate::guest::{Guest, stop_reason};

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// gdb has gone, or detached; the guest goes on.
    Gone,
    /// gdb wanted the guest killed. It goes on.
    Kill,
    /// The guest has ended.
    GuestEnded,
}

/// Why a connection broke.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The server, or the guest.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The connection itself.
    #[error("the connection to gdb is broken: {0}")]
    Connection(#[from] io::Error),
    /// gdb sent what the protocol doesn't have.
    #[error("gdb and vmprobe don't understand each other: {0}")]
    Protocol(String),
}

/// What is to be sent to gdb.
#[derive(Debug, Clone, Default)]
struct Outgoing(Arc<Mutex<Vec<u8>>>);

impl Outgoing {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Connection for Outgoing {
    type Error = Infallible;

    fn write(&mut self, byte: u8) -> Result<(), Infallible> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// What gdb has sent.
struct Incoming<R> {
    from: R,
    buffer: Vec<u8>,
    next: usize,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
            next: 0,
        }
    }

    /// Returns the next byte; `None` at the end. Nothing is lost when the future is dropped.
    async fn next(&mut self) -> io::Result<Option<u8>> {
        if self.next == self.buffer.len() {
            self.buffer.clear();
            self.next = 0;
            self.buffer.reserve(4096);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
        let byte = self.buffer[self.next];
        self.next += 1;
        Ok(Some(byte))
    }
}

/// Does what gdb asks for until it has gone, or the guest has ended. `log` gets the reasons that gdb is told of by a
/// number only. The guest goes on when this returns.
///
/// Call it on a runtime with several threads.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    session: DebugSession,
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    log: &mut (dyn FnMut(&str) + Send),
) -> Result<End, ServeError> {
    let outgoing = Outgoing::default();
    let mut incoming = Incoming::new(from);
    let mut guest = Guest::new(session, log);
    let stub = GdbStub::new(outgoing.clone());
    let mut state = stub.run_state_machine(&mut guest).map_err(protocol)?;
    let mut has_ended = false;
    loop {
        to.write_all(&outgoing.take()).await?;
        to.flush().await?;
        state = match state {
            GdbStubStateMachine::Idle(idle) => {
                let Some(byte) = incoming.next().await? else {
                    return Ok(End::Gone);
                };
                idle.incoming_data(&mut guest, byte).map_err(protocol)?
            }
            GdbStubStateMachine::Running(running) => tokio::select! {
                byte = incoming.next() => match byte? {
                    Some(byte) => running.incoming_data(&mut guest, byte).map_err(protocol)?,
                    None => return Ok(End::Gone),
                },
                event = guest.session.next() => {
                    let reason = match event {
                        Ok(DebugEvent::Stopped(stopped)) => stop_reason(&stopped),
                        // The guest hasn't run, so it stands where it stood.
                        Err(ClientError::FailedPrecondition(why)) => {
                            guest.log(&why);
                            stop_reason(&GuestStopped::default())
                        }
                        Err(error) => return Err(error.into()),
                        Ok(DebugEvent::Ended(ending)) => {
                            has_ended = true;
                            MultiThreadStopReason::Exited(ending.exit_code.try_into().unwrap_or(1))
                        }
                    };
                    running.report_stop(&mut guest, reason).map_err(protocol)?
                }
            },
            GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                // The stop itself is reported like any other. A guest that stands still ignores the interrupt.
                guest.session.interrupt().await?;
                let no_stop = None::<MultiThreadStopReason<u64>>;
                interrupt
                    .interrupt_handled(&mut guest, no_stop)
                    .map_err(protocol)?
            }
            GdbStubStateMachine::Disconnected(end) => {
                return Ok(match end.get_reason() {
                    _ if has_ended => End::GuestEnded,
                    DisconnectReason::Kill => End::Kill,
                    DisconnectReason::Disconnect
                    | DisconnectReason::TargetExited(_)
                    | DisconnectReason::TargetTerminated(_) => End::Gone,
                });
            }
        };
    }
}

fn protocol(error: impl Display) -> ServeError {
    ServeError::Protocol(error.to_string())
}
