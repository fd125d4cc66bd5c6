//! The Unix sockets of the host that stand for ports.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, openat},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use thiserror::Error;

use super::GUEST_CIDS;
use crate::host_path::HostPath;

/// Connections that may wait to be accepted. The system takes less where its `net.core.somaxconn` is lower.
const BACKLOG: i32 = 4096;
/// The owner of the server's process can connect, and nobody else.
const MODE: u32 = 0o600;

/// A socket device for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vsock {
    /// Where processes of the host connect to the guest. The Unix socket is made, and removed when the VM
    /// ends. The sockets that the guest connects to are `PATH_PORT`.
    pub path: HostPath,
    /// The guest's address: at least 3, and less than 2^32 - 1.
    pub cid: u32,
}

/// Why a guest can't have its socket device.
#[derive(Debug, Error)]
pub enum VsockError {
    /// An address that no guest can have.
    #[error(
        "a guest can't have the CID {0}: it is at least {least} and less than {end}",
        least = GUEST_CIDS.start,
        end = GUEST_CIDS.end
    )]
    Cid(u32),
    /// With a port behind it, the path is too long for the host's system.
    #[error(
        "the path {path} is too long for a Unix socket: with a port behind it, as in \
         `{path}_4294967295`, it can have 107 bytes"
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Something else than a socket is there.
    #[error("{path} is there already and is no socket: name another path, or remove it")]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// Another process or another guest has it.
    #[error(
        "somebody listens on the socket {path} already: give each guest a path of its own, or end who \
         listens there"
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The system refused it.
    #[error("the socket {path} can't be made: {cause}")]
    Make {
        /// The path.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

impl VsockError {
    /// The field of [`Vsock`] that is to blame.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            Self::Cid(_) => "devices.vsock.cid",
            _ => "devices.vsock.path",
        }
    }
}

/// The socket that the host connects to, and the way to those that the guest connects to.
pub(super) struct HostSocket {
    path: HostPath,
    listener: UnixListener,
    /// Device and number of the socket's file.
    file: (u64, u64),
}

impl HostSocket {
    /// Makes the socket at `path`. One that no process listens on any more is replaced.
    pub(super) fn new(wanted: &HostPath) -> Result<Self, VsockError> {
        let failed = |cause| VsockError::Make {
            path: wanted.name().to_owned(),
            cause,
        };
        let path = wanted.path();
        // The longest of the paths that a port can lead to.
        if SocketAddrUnix::new(port_path(path, u32::MAX)).is_err() {
            return Err(VsockError::PathTooLong {
                path: wanted.name().to_owned(),
            });
        }
        let listener = match listen(path) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => {
                remove_unused(wanted)?;
                listen(path)
            }
            other => other,
        };
        let listener = listener.map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            path: wanted.clone(),
            listener,
            file: (metadata.dev(), metadata.ino()),
        })
    }

    /// The socket itself, to be watched.
    pub(super) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The next process that has connected. It doesn't block, nor does what it returns.
    pub(super) fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Connects to the process that listens for the guest at `port`. It doesn't block: if too many
    /// connections wait to be accepted there, it fails.
    pub(super) fn connect(&self, port: u32) -> io::Result<UnixStream> {
        let path = port_path(self.path.path(), port);
        let Some(folder) = self.path.folder() else {
            return connect(&path);
        };
        // A guest may share the folder, and make a link to a socket elsewhere.
        let name = path.file_name().unwrap_or_default();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(folder, name, flags, Mode::empty())?;
        connect(HostPath::of_file(&path, socket).path())
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        // Another socket may have been put there.
        let path = self.path.path();
        let is_ours = fs::symlink_metadata(path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if is_ours && let Err(error) = fs::remove_file(path) {
            tracing::warn!("the socket {} stays: {error}", self.path);
        }
    }
}

fn port_path(path: &Path, port: u32) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(format!("_{port}"));
    path.into()
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    // The file gets the mode that the socket has by then (`unix_bind` in net/unix/af_unix.c), so it is never
    // open to others.
    let socket = File::from(new_socket()?);
    socket.set_permissions(Permissions::from_mode(MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(OwnedFd::from(socket)))
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Removes a socket that no process listens on.
fn remove_unused(wanted: &HostPath) -> Result<(), VsockError> {
    let path = wanted.path();
    let owned = || wanted.name().to_owned();
    let failed = |cause| VsockError::Make {
        path: owned(),
        cause,
    };
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    if !metadata.file_type().is_socket() {
        return Err(VsockError::Occupied { path: owned() });
    }
    match connect(path) {
        Err(error) if error.raw_os_error() == Some(Errno::CONNREFUSED.raw_os_error()) => {
            fs::remove_file(path).map_err(failed)
        }
        // So many connections wait to be accepted that no more can.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(VsockError::InUse { path: owned() })
        }
        Err(cause) => Err(failed(cause)),
        Ok(_) => Err(VsockError::InUse { path: owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_socket_is_its_owners_and_goes_away_with_the_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vsock");
        let socket = HostSocket::new(&path.as_path().into()).unwrap();
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, MODE);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(fs::symlink_metadata(&path).is_err());
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_replaced_and_another_ones_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vsock");
        drop(UnixListener::bind(&path).unwrap());
        let first = HostSocket::new(&path.as_path().into()).unwrap();
        let refused = HostSocket::new(&path.as_path().into()).err();
        assert!(
            matches!(refused, Some(VsockError::InUse { .. })),
            "{refused:?}"
        );
        fs::remove_file(&path).unwrap();
        let second = HostSocket::new(&path.as_path().into()).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
    }

    #[test]
    fn what_is_no_socket_stays_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        let link = folder.path().join("link");
        symlink(&file, &link).unwrap();
        for path in [file.as_path(), &link, folder.path()] {
            let refused = HostSocket::new(&path.into()).err().unwrap();
            let is_named = refused.to_string().contains(&path.display().to_string());
            assert!(
                is_named && matches!(refused, VsockError::Occupied { .. }),
                "{refused:?}"
            );
        }
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn a_guest_gets_to_sockets_of_a_folder_that_is_held_and_by_no_link_to_others() {
        let outside = tempfile::tempdir().unwrap();
        let elsewhere = outside.path().join("service");
        let _others = UnixListener::bind(&elsewhere).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let _service = UnixListener::bind(folder.path().join("vsock_1")).unwrap();
        symlink(&elsewhere, folder.path().join("vsock_2")).unwrap();
        let held = fs::File::open(folder.path()).unwrap();
        let wanted = HostPath::within("shown", held.into(), "vsock".as_ref());
        let socket = HostSocket::new(&wanted).unwrap();
        UnixStream::connect(folder.path().join("vsock")).unwrap();
        assert!(socket.connect(1).is_ok());
        let refused = socket.connect(2).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(
            socket.connect(3).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        drop(socket);
        assert!(!folder.path().join("vsock").exists());
    }

    #[test]
    fn a_path_without_room_for_a_port_or_without_a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(100));
        let refused = HostSocket::new(&long.into()).err();
        assert!(
            matches!(refused, Some(VsockError::PathTooLong { .. })),
            "{refused:?}"
        );
        let refused = HostSocket::new(&folder.path().join("no/vsock").into()).err();
        assert!(
            matches!(refused, Some(VsockError::Make { .. })),
            "{refused:?}"
        );
    }
}
