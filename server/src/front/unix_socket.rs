//! A Unix socket with permissions for those who may connect.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tokio::net::UnixListener;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Permissions of a folder that is made for a socket.
const FOLDER: u32 = 0o700;

/// A socket that listens. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct UnixSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens at `path`, with these permissions for those who connect. Replaces a socket at which no process listens
    /// any more. Makes its folder if there is none.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, or the system's error.
    pub(super) fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            DirBuilder::new()
                .recursive(true)
                .mode(FOLDER)
                .create(folder)?;
        }
        remove_left(path)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        // The permissions are set before any client can connect.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        listen(&socket, BACKLOG)?;
        Ok(Self {
            listener: UnixListener::from_std(socket.into())?,
            path: path.to_owned(),
        })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _another_may_have_removed_it = fs::remove_file(&self.path);
    }
}

/// Removes the socket of a process that was killed.
fn remove_left(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something else than a socket is there",
        ));
    }
    match StdUnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("vmprobe-socket-{}-{name}", std::process::id());
        std::env::temp_dir().join(name)
    }

    #[tokio::test]
    async fn a_socket_has_its_permissions_and_goes_with_its_owner() {
        let folder = folder("permissions");
        let path = folder.join("made/a.sock");
        let socket = UnixSocket::bind(&path, 0o660).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, FOLDER);
        let again = UnixSocket::bind(&path, 0o600).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_socket_that_was_left_is_replaced_and_nothing_else_is() {
        let folder = folder("left");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(UnixSocket::bind(&path, 0o600).unwrap());
        fs::write(&path, "a file").unwrap();
        let refused = UnixSocket::bind(&path, 0o600).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
        fs::remove_dir_all(folder).unwrap();
    }
}
