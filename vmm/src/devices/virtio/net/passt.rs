//! Passt, a program that lets a guest use the host's network without a privilege: it ends the guest's connections and
//! makes them anew by sockets of its own (<https://passt.top>).

use std::{
    io,
    net::Shutdown,
    os::{
        fd::{OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, pidfd_open},
};
use vmm_sys_util::epoll::EventSet;

use super::{
    backend::{Backend, Lost},
    stream::FrameStream,
    wanted::NetError,
};
use crate::host_path::HostPath;

/// The program, which is looked up in the PATH, and its arguments: it gets a socket as its standard input. Any other
/// descriptor would have to be kept open for it in a process with several threads.
const PROGRAM: &str = "passt";
const ARGUMENTS: [&str; 4] = ["--foreground", "--quiet", "--fd", "0"];
/// How long a passt may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connects to a passt that runs.
///
/// # Errors
/// No process listens there.
pub(super) fn connect(path: &HostPath) -> Result<UnixStream, NetError> {
    let connected = UnixStream::connect(path.path()).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    connected.map_err(|cause| NetError::ConnectPasst {
        path: path.name().to_owned(),
        cause,
    })
}

/// A passt that was started for a guest, and ends with this.
pub(super) struct Passt {
    frames: FrameStream,
    process: Child,
}

impl Passt {
    /// Starts it. What it has to say goes to this process's standard error.
    ///
    /// # Errors
    /// Passt isn't there, or the system refuses it.
    pub(super) fn start() -> Result<Self, NetError> {
        Self::start_as(Command::new(PROGRAM).args(ARGUMENTS))
    }

    fn start_as(command: &mut Command) -> Result<Self, NetError> {
        let failed = |cause| NetError::StartPasst { cause };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let process = command
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|cause| match cause.kind() {
                io::ErrorKind::NotFound => NetError::NoPasst,
                _ => failed(cause),
            })?;
        Ok(Self {
            frames: FrameStream::new(ours),
            process,
        })
    }

    /// Waits until the process has ended; false if it takes longer than this.
    fn ends_in(&mut self, time: Duration) -> io::Result<bool> {
        // The number is that of a child that hasn't been waited for: no other process has it.
        let process = Pid::from_child(&self.process);
        let file = pidfd_open(process, PidfdFlags::empty())?;
        let mut ends = [PollFd::new(&file, PollFlags::IN)];
        let limit = Timespec::try_from(time).map_err(io::Error::other)?;
        retry_on_intr(|| poll(&mut ends, Some(&limit)))?;
        Ok(self.process.try_wait()?.is_some())
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        // Passt ends when its socket is closed, and at once when it is killed. If root has started it, it has become
        // another user's process, which this one may not kill.
        let _it_may_have_closed_it_itself = self.frames.socket().shutdown(Shutdown::Both);
        let _it_may_not_be_ours = self.process.kill();
        match self.ends_in(PATIENCE) {
            Ok(true) => {}
            Ok(false) => tracing::warn!("passt goes on, {PATIENCE:?} after its socket was closed"),
            Err(error) => tracing::warn!("passt's end can't be waited for: {error}"),
        }
    }
}

impl Backend for Passt {
    fn file(&self) -> RawFd {
        self.frames.file()
    }

    fn check(&mut self, events: EventSet) -> Result<(), Lost> {
        self.frames.check(events)
    }

    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Lost> {
        self.frames.receive(packet)
    }

    fn can_send(&mut self) -> Result<bool, Lost> {
        self.frames.can_send()
    }

    fn send(&mut self, packet: &[u8]) -> Result<(), Lost> {
        self.frames.send(packet)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::devices::virtio::net::{HEADER_LEN, MAX_PACKET};

    #[test]
    fn a_program_that_is_not_there_and_a_socket_without_a_listener_are_named() {
        let missing = Passt::start_as(&mut Command::new("passt-that-is-not-there")).err();
        assert!(matches!(missing, Some(NetError::NoPasst)), "{missing:?}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let refused = connect(&path.as_path().into()).unwrap_err();
        let is_named = refused.to_string().contains(&path.display().to_string());
        assert!(
            is_named && matches!(refused, NetError::ConnectPasst { .. }),
            "{refused:?}"
        );
    }

    #[test]
    fn a_program_is_started_with_the_socket_and_is_gone_with_the_device() {
        // It sends back what it gets.
        let mut command = Command::new("sh");
        let mut passt = Passt::start_as(command.args(["-c", "exec cat >&0"])).unwrap();
        passt.frames.socket().set_nonblocking(false).unwrap();
        let packet = [&[0; HEADER_LEN][..], &[0x5a; 60]].concat();
        assert!(passt.can_send().unwrap());
        passt.send(&packet).unwrap();
        let mut back = [0; MAX_PACKET];
        let len = passt.receive(&mut back).unwrap();
        assert_eq!(len.map(|len| &back[..len]), Some(&packet[..]));
        let process = format!("/proc/{}", passt.process.id());
        assert!(fs::metadata(&process).is_ok());
        drop(passt);
        assert!(fs::metadata(&process).is_err());
    }
}
