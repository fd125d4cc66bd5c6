//! The file system behind a share.

use std::{io, time::Duration};

use fuse_backend_rs::{
    api::server::Server,
    passthrough::{Config, PassthroughFs},
    transport::{Reader, Writer},
};

use super::{
    share::{Share, ShareError, ShareMode},
    view::View,
};

/// How long a guest may take names and attributes for true without asking again. Files of a share are
/// changed by others too, and programs like `make` compare their times.
const VALID: Duration = Duration::from_secs(1);

/// A share's file system, with all that the guest has open in it.
pub(super) struct Served(Server<View<PassthroughFs>>);

impl Served {
    /// Opens a share's folder.
    pub(super) fn open(share: &Share) -> Result<Self, ShareError> {
        share.check()?;
        let files = files(share).map_err(|cause| ShareError::Folder {
            path: share.path.name().to_owned(),
            cause,
        })?;
        Ok(Self(Server::new(View {
            files,
            is_writable: share.mode == ShareMode::ReadWrite,
            as_own_user: !rustix::process::geteuid().is_root(),
        })))
    }

    /// Answers a request. Returns how many bytes of `writer` were filled.
    pub(super) fn answer(&self, reader: Reader<'_>, writer: Writer<'_>) -> io::Result<usize> {
        let answered = self.0.handle_message(reader, writer, None, None);
        answered.map_err(io::Error::other)
    }
}

fn files(share: &Share) -> io::Result<PassthroughFs> {
    let path = share.path.path().to_str();
    let path = path.ok_or(io::ErrorKind::InvalidFilename)?;
    let files = PassthroughFs::new(Config {
        root_dir: path.to_owned(),
        attr_timeout: VALID,
        entry_timeout: VALID,
        xattr: true,
        // Otherwise every feature that the driver offers is taken up, whatever is set here.
        do_import: true,
        ..Default::default()
    })?;
    files.import()?;
    Ok(files)
}
