//! The file system behind a share.

use std::{io, path::Path, sync::Arc, time::Duration};

use fuse_backend_rs::{
    api::server::Server,
    overlayfs::{self, BoxedLayer, OverlayFs},
    passthrough::{self, PassthroughFs},
    transport::{Reader, Writer},
};

use super::{
    opaque::Whiteouts,
    share::{Changes, Share, ShareError, ShareMode},
    view::View,
};

/// How long a guest may take names and attributes for true without asking again. Files of a share are
/// changed by others too, and programs like `make` compare their times.
const VALID: Duration = Duration::from_secs(1);

/// The folders of a share, for as long as the guest may begin with them anew.
pub(super) struct Folders {
    share: Share,
    changes: Option<Changes>,
}

/// A share's file system, with all that the guest has open in it.
pub(super) enum Served {
    Folder(Server<View<PassthroughFs>>),
    Overlay(Server<View<OverlayFs>>),
}

impl Folders {
    /// Finds the folders of a share.
    pub(super) fn new(share: &Share) -> Result<Self, ShareError> {
        share.check()?;
        let changes = match &share.mode {
            ShareMode::ReadOnly | ShareMode::ReadWrite => None,
            ShareMode::CopyOnWrite { changes } => {
                Some(Changes::new(changes.as_deref(), &share.path)?)
            }
        };
        Ok(Self {
            share: share.clone(),
            changes,
        })
    }

    /// Opens them.
    pub(super) fn open(&self) -> Result<Served, ShareError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |cause| ShareError::Folder { path, cause }
        };
        let path = &self.share.path;
        let files = folder(path).map_err(failed(path))?;
        let Some(changes) = &self.changes else {
            let is_writable = self.share.mode == ShareMode::ReadWrite;
            return Ok(Served::Folder(Server::new(view(files, is_writable))));
        };
        let upper = folder(changes.path()).map_err(failed(changes.path()))?;
        let overlay = overlay(view(upper, true), view(files, false)).map_err(failed(path))?;
        Ok(Served::Overlay(Server::new(view(overlay, true))))
    }
}

impl Served {
    /// Answers a request. Returns how many bytes of `writer` were filled.
    pub(super) fn answer(&self, reader: Reader<'_>, writer: Writer<'_>) -> io::Result<usize> {
        let answered = match self {
            Self::Folder(server) => server.handle_message(reader, writer, None, None),
            Self::Overlay(server) => server.handle_message(reader, writer, None, None),
        };
        answered.map_err(io::Error::other)
    }
}

fn view<F>(files: F, is_writable: bool) -> View<F> {
    View {
        files,
        is_writable,
        as_own_user: !rustix::process::geteuid().is_root(),
        whiteouts: Whiteouts::default(),
    }
}

/// A folder as it is. What the driver offers is taken up as the configuration says only with `do_import`.
fn folder(path: &Path) -> io::Result<PassthroughFs> {
    let text = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    let files = PassthroughFs::new(passthrough::Config {
        root_dir: text.to_owned(),
        attr_timeout: VALID,
        entry_timeout: VALID,
        xattr: true,
        do_import: true,
        ..Default::default()
    })?;
    files.import()?;
    Ok(files)
}

/// `upper` over `lower`.
fn overlay(upper: View<PassthroughFs>, lower: View<PassthroughFs>) -> io::Result<OverlayFs> {
    let upper: Arc<BoxedLayer> = Arc::new(Box::new(upper));
    let lower: Arc<BoxedLayer> = Arc::new(Box::new(lower));
    let config = overlayfs::config::Config {
        do_import: true,
        attr_timeout: VALID,
        entry_timeout: VALID,
        ..Default::default()
    };
    let overlay = OverlayFs::new(Some(upper), vec![lower], config)?;
    overlay.import()?;
    Ok(overlay)
}
