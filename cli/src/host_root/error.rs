//! Why there is no guest with a folder as its root, or no end of its command.

use std::io;
use std::path::PathBuf;

use super::modules::ModulesError;
use crate::paths::PathError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// PID 1 isn't there.
    #[error(
        "can't read vmprobe-init, the guest's PID 1, at {}: {cause}; `make build` puts it beside this program",
        .path.display()
    )]
    NoInit {
        /// Where it is looked for.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The kernel can't be read.
    #[error("can't read the kernel {}: {cause}", .path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Modules.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// A path that the protocol doesn't take.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A folder that isn't in the root.
    #[error("{} isn't in the guest's root {}", .path.display(), .root.display())]
    NotInRoot {
        /// The folder.
        path: PathBuf,
        /// The root.
        root: PathBuf,
    },
    /// The root is neither a folder nor an image.
    #[error("the guest's root {} isn't there: it is a folder of this host's or a disk image", .0.display())]
    NoRoot(PathBuf),
    /// A folder of an image can't be one of the host's.
    #[error(
        "--rw names folders of the host's, and the guest's root is an image: give a folder with --share, or keep \
         all changes with \",rw\" behind the image"
    )]
    WritableOnDisk,
    /// A file of its own can't be written.
    #[error("can't write what the guest boots from: {0}")]
    Write(io::Error),
    /// A socket fails.
    #[error("can't talk to the command in the guest: {0}")]
    Streams(io::Error),
    /// The command's output can't be written.
    #[error("can't write the command's output: {0}")]
    Output(io::Error),
}
