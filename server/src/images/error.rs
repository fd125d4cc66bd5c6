//! What can go wrong with images.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::Digest;
use super::digest::NoDigest;
use crate::limits;

/// Why a folder can't be that of a server's images.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another server uses the folder.
    #[error(
        "the folder of images {0} is another server's, which runs: give each server a folder of its own (--images)"
    )]
    InUse(PathBuf),
    /// Other users could change images.
    #[error(
        "the folder of images {0} is another user's, or others can write to it: give one that only this server's user \
         can (--images)"
    )]
    Others(PathBuf),
    /// The list of images can't be read.
    #[error(
        "{file}, which lists the images, isn't a list of them: {cause}; put it right, or remove it, and the images go"
    )]
    Index {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// The system refuses.
    #[error("the folder of images {folder} can't be used: {cause}")]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// A limit of images, and the option that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// Bytes of all images.
    All,
    /// Bytes of one client's images.
    Client,
}

impl Most {
    pub(super) fn option(self) -> &'static str {
        match self {
            Self::All => "--max-images",
            Self::Client => "--max-client-images",
        }
    }

    fn whose(self) -> &'static str {
        match self {
            Self::All => "all images and private copies of this server",
            Self::Client => "the images and private copies of one client",
        }
    }
}

/// Why a request about images fails.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The server was started without a folder for them.
    #[error("this server keeps no images: have vmprobed started with --images FOLDER")]
    None,
    /// The text can't be an image's name.
    #[error(
        "an image's name has at most {} letters, digits, `-`, `_` and `.`, and doesn't begin with `sha256-`",
        limits::NAME_CHARS
    )]
    Name,
    /// The text is no reference to an image.
    #[error("`{0}` names no image: give its name, or `sha256-` and the 64 digits of its SHA-256")]
    Reference(String),
    /// The client has no such image.
    #[error(
        "this client has no image called `{0}`: see `vmprobe image list`, or hand it over with `vmprobe image push`"
    )]
    Missing(String),
    /// The text is no digest.
    #[error(transparent)]
    Digest(#[from] NoDigest),
    /// An image of no bytes.
    #[error("an image has at least one byte")]
    Empty,
    /// A limit is reached.
    #[error(
        "{wanted} bytes more are too much: {} may have {limit} MiB, and have {taken} bytes with uploads under way: \
         delete some (`vmprobe image remove`), or start vmprobed with a larger {}",
        .most.whose(),
        .most.option()
    )]
    Full {
        /// The limit.
        most: Most,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that are taken.
        taken: u64,
        /// The limit.
        limit: u64,
    },
    /// The image alone is larger than a limit allows.
    #[error(
        "the image has {size} bytes, and {limit} MiB are the most: start vmprobed with a larger --max-image"
    )]
    TooLarge {
        /// The image's size in bytes.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// There are too many images.
    #[error(
        "this server has {0} images, as many as it takes: delete some (`vmprobe image remove`), or start vmprobed with \
         a larger --max-image-count"
    )]
    TooMany(usize),
    /// There are too many uploads at the same time.
    #[error(
        "this server takes {0} uploads at the same time: try again when one has ended, or start vmprobed with a larger \
         --max-uploads"
    )]
    Uploads(usize),
    /// A part of an upload is too long or has nothing.
    #[error(
        "a part of an image has 1 to {} bytes, or 1 to {} zeros",
        limits::IMAGE_CHUNK,
        limits::IMAGE_ZEROS
    )]
    Part,
    /// The parts are out of order.
    #[error("an upload begins with `begin`, once, and goes on with its content")]
    Order,
    /// The upload has more bytes than announced.
    #[error(
        "the image has {found} bytes or more, and {announced} were announced: nothing is kept of it"
    )]
    Long {
        /// Bytes that came.
        found: u64,
        /// Bytes that should have.
        announced: u64,
    },
    /// The upload ends early.
    #[error(
        "the upload has ended after {found} of {announced} bytes: nothing is kept of it, send the image anew"
    )]
    Short {
        /// Bytes that came.
        found: u64,
        /// Bytes that should have.
        announced: u64,
    },
    /// The content isn't the announced one.
    #[error(
        "the content's SHA-256 is {found}, and {announced} was announced: it has changed on its way, or while it was \
         read; nothing is kept of it, send the image anew"
    )]
    Content {
        /// The digest of the content that came.
        found: Digest,
        /// The announced digest.
        announced: Digest,
    },
    /// The next part of an upload doesn't come in time.
    #[error(
        "nothing has come of the image for {0} s: nothing is kept of it; send it anew, or start vmprobed with a larger \
         --upload-timeout"
    )]
    Idle(u64),
    /// VMs use the image.
    #[error("the image is used by {}: delete them first", .0.join(", "))]
    InUse(Vec<String>),
    /// The disk is full.
    #[error("the server's disk has no room for it ({0}): make some, or ask the server's owner to")]
    DiskFull(io::Error),
    /// The system refuses.
    #[error("the server's folder of images can't be used: {0}")]
    Io(io::Error),
}

impl ImageError {
    /// Returns the limit that is reached, if the error is one: an option of the server, or its
    /// disk.
    pub(super) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Full { most, .. } => Some(most.option()),
            Self::TooLarge { .. } => Some("--max-image"),
            Self::TooMany(_) => Some("--max-image-count"),
            Self::Uploads(_) => Some("--max-uploads"),
            Self::DiskFull(_) => Some("host disk"),
            _ => None,
        }
    }
}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::DiskFull(error),
            _ => Self::Io(error),
        }
    }
}
