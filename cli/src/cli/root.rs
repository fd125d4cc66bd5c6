//! Arguments of a guest whose root is a folder of the host's.

use std::path::PathBuf;

use clap::Args;

use super::DiskArg;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "A folder as root")]
pub struct RootArgs {
    /// The folder that is the guest's root, by virtio-fs, or a disk image with a root file system
    ///
    /// What the guest changes in it is in the guest's memory and gone with the guest. An image is raw, or qcow2 with
    /// ",qcow2" behind it; its first partition with a root file system is taken. The kernel's drivers are
    /// loaded from /lib/modules/RELEASE where it has them as modules: `virtio_pci`, virtiofs, overlay and
    /// `vmw_vsock_virtio_transport`. The command's streams take the guest's socket device, so it can't have one by
    /// --vsock as well.
    #[arg(
        long,
        value_name = "FOLDER|IMAGE",
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

impl RootArgs {
    /// Returns true if the root is an image, and not a folder.
    pub fn is_disk(&self) -> bool {
        self.image().is_some()
    }

    /// The image that is the root, if it is one: whatever is there and is no folder.
    pub fn image(&self) -> Option<DiskArg> {
        let root = self.root.as_deref().filter(|root| !root.is_dir())?;
        let disk: DiskArg = root.to_str()?.parse().ok()?;
        disk.path.exists().then_some(DiskArg {
            read_only: true,
            ..disk
        })
    }
}
