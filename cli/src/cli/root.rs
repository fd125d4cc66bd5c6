//! Arguments of a guest whose root is a folder of the host's or a disk image.

use std::path::{Path, PathBuf};

use clap::Args;
use vmprobe_init::Changes;

use super::DiskArg;

/// What stands behind a root that keeps its changes.
const KEPT: &str = ",rw";

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A folder or a disk as root")]
pub struct RootArgs {
    /// The folder that is the guest's root, by virtio-fs, or a disk image with a root file system
    ///
    /// What the guest changes in it is in the guest's memory and gone with the guest, unless ",rw" is behind it. An
    /// image is raw, or qcow2 with ",qcow2" behind it (before ",rw"); its first partition with a root file system is
    /// taken. The kernel's drivers are loaded from /lib/modules/RELEASE where it has them as modules: `virtio_pci`,
    /// virtiofs or `virtio_blk`, overlay, and those of the guest's other devices. The streams of a command take the
    /// guest's socket device, so it can't have one by --vsock as well.
    #[arg(long, value_name = "FOLDER|IMAGE[,rw]", requires = "task")]
    pub root: Option<PathBuf>,
    /// Boot the system in the root, console on this terminal, instead of running a command: its /sbin/init, or PROGRAM
    #[arg(
        long,
        value_name = "PROGRAM",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "/sbin/init",
        requires = "root",
        group = "task",
    )]
    pub init: Option<String>,
    /// A folder in the root in which the guest's changes stay (repeatable)
    #[arg(long = "rw", value_name = "FOLDER", requires = "root")]
    pub writable: Vec<PathBuf>,
    /// Where the kernel's modules are, instead of /lib/modules/RELEASE
    #[arg(long, value_name = "FOLDER", requires = "root")]
    pub modules: Option<PathBuf>,
    /// Run the command as the user who runs this, instead of as root
    #[arg(long, requires = "command")]
    pub as_user: bool,
    /// The folder in the guest that the command is started in; this one if it is in the root
    #[arg(long = "chdir", value_name = "FOLDER", requires = "command")]
    pub folder: Option<PathBuf>,
    /// A variable of the command's: one to pass on, or a new one (repeatable)
    #[arg(long = "env", value_name = "NAME[=VALUE]", requires = "command")]
    pub environment: Vec<String>,
    /// The command, and its arguments
    #[arg(
        last = true,
        value_name = "COMMAND",
        requires = "root",
        group = "task",
        conflicts_with_all = ["vsock", "cloud_init", "user_data"]
    )]
    pub command: Vec<String>,
}

/// What the guest's root is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootPlace {
    /// A folder of this host's.
    Folder(PathBuf),
    /// An image, or a block device.
    Disk(DiskArg),
}

impl RootArgs {
    /// Returns what the root is and where changes of it go. None if nothing is there.
    pub fn place(&self) -> Option<(RootPlace, Changes)> {
        let root = self.root.as_deref()?;
        if let Some(place) = place(root, Changes::Memory) {
            return Some((place, Changes::Memory));
        }
        let root = root.to_str()?.strip_suffix(KEPT)?;
        Some((place(Path::new(root), Changes::Root)?, Changes::Root))
    }
}

fn place(root: &Path, changes: Changes) -> Option<RootPlace> {
    if root.is_dir() {
        return Some(RootPlace::Folder(root.to_owned()));
    }
    let disk: DiskArg = root.to_str()?.parse().ok()?;
    let is_image = disk.path.exists() && !disk.path.is_dir();
    is_image.then_some(RootPlace::Disk(DiskArg {
        read_only: disk.read_only || changes == Changes::Memory,
        ..disk
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_what_is_there_and_keeps_changes_where_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, "x").unwrap();
        let of = |text: String| {
            let root = Some(PathBuf::from(text));
            let root = RootArgs {
                root,
                ..RootArgs::default()
            };
            root.place()
        };
        let here = folder.path().display();
        let as_folder = RootPlace::Folder(folder.path().to_owned());
        let disk = |words: &str| format!("{}{words}", image.display());
        let as_disk = |words: &str| RootPlace::Disk(disk(words).parse().unwrap());
        for (text, place, changes) in [
            (here.to_string(), as_folder.clone(), Changes::Memory),
            (format!("{here},rw"), as_folder, Changes::Root),
            (disk(""), as_disk(",ro"), Changes::Memory),
            (disk(",qcow2"), as_disk(",qcow2,ro"), Changes::Memory),
            (disk(",qcow2,rw"), as_disk(",qcow2"), Changes::Root),
        ] {
            assert_eq!(of(text.clone()), Some((place, changes)), "{text}");
        }
        for text in [
            format!("{here}/missing"),
            disk(",rwx"),
            format!("{here},ro"),
        ] {
            assert_eq!(of(text.clone()), None, "{text}");
        }
    }
}
