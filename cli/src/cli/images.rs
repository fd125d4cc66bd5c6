//! Arguments of `vmprobe image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ServerArgs;
use super::format::FormatArgs;

pub const IMAGE_EXAMPLES: &str = "\
Examples:
  vmprobe image push vmlinuz-6.12 --name linux     hand a file over, unless the server has it
  vmprobe vm create --kernel image:linux           use it
  vmprobe image list
  vmprobe image remove linux";

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Hand a file over to the server, and print what it is called there
    Push(ImagePush),
    /// List the images that this client has on the server, or others
    List(ImageList),
    /// Delete images of this client's, or of others
    Remove(ImageRemove),
}

#[derive(Debug, Args)]
pub struct ImagePush {
    #[command(flatten)]
    pub server: ServerArgs,
    /// The file: a kernel, an initramfs, symbols or a disk
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A name for it; an image that has it loses it
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct ImageList {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub owner: OwnerArgs,
    /// List those of all clients, with their owners
    #[arg(long, conflicts_with = "owner")]
    pub all: bool,
}

/// Whose images are meant.
#[derive(Debug, Args)]
pub struct OwnerArgs {
    /// Whose images are meant: `client:NAME` of the server's list, `user:NUMBER` of its host, or `anonymous`; this
    /// client's own unless it is given. Those of others take the role `control` over all VMs
    #[arg(
        long,
        value_name = "OWNER",
        default_value = "",
        hide_default_value = true
    )]
    pub owner: String,
}

#[derive(Debug, Args)]
pub struct ImageRemove {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Their names, or `sha256-` and their digests
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<String>,
    #[command(flatten)]
    pub owner: OwnerArgs,
}

/// Which files of this host are handed over to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Push {
    /// Those that are here, if the server is reached by TLS
    Auto,
    /// Those that are here
    Always,
    /// None: all paths are of the server's host
    Never,
}

impl Push {
    /// Returns true if files are handed over to the server at this address.
    pub fn applies_to(self, endpoint: &str) -> bool {
        match self {
            Self::Auto => endpoint.starts_with("https://"),
            Self::Always => true,
            Self::Never => false,
        }
    }
}
