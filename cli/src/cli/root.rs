//! Arguments of a guest whose root is a folder of the host's.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "A folder as root")]
pub struct RootArgs {
    /// The folder that is the guest's root, by virtio-fs
    ///
    /// What the guest changes in it is in the guest's memory and gone with the guest. The kernel's drivers are
    /// loaded from /lib/modules/RELEASE where it has them as modules: `virtio_pci`, virtiofs, overlay and
    /// `vmw_vsock_virtio_transport`. The command's streams take the guest's socket device, so it can't have one by
    /// --vsock as well.
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "command",
        conflicts_with = "vsock"
    )]
    pub root: Option<PathBuf>,
    /// A folder in the root in which the guest's changes stay (repeatable)
    #[arg(long = "rw", value_name = "FOLDER", requires = "root")]
    pub writable: Vec<PathBuf>,
    /// Where the kernel's modules are, instead of /lib/modules/RELEASE
    #[arg(long, value_name = "FOLDER", requires = "root")]
    pub modules: Option<PathBuf>,
    /// Run the command as the user who runs this, instead of as root
    #[arg(long, requires = "root")]
    pub as_user: bool,
    /// The folder in the guest that the command is started in; this one if it is in the root
    #[arg(long = "chdir", value_name = "FOLDER", requires = "root")]
    pub folder: Option<PathBuf>,
    /// A variable of the command's: one to pass on, or a new one (repeatable)
    #[arg(long = "env", value_name = "NAME[=VALUE]", requires = "root")]
    pub environment: Vec<String>,
    /// The command, and its arguments
    #[arg(last = true, value_name = "COMMAND", requires = "root")]
    pub command: Vec<String>,
}
