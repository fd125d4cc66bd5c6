//! What a guest with a host's folder as its root boots from.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cpio::newc;
use tempfile::TempDir;
use vmprobe_client::v1::{Devices, Disk, Share, ShareMode, Vsock};
use vmprobe_init::{JOB, Job, MODULES, Root};

use super::error::RootError;
use super::job;
use super::modules::Modules;
use super::release;
use crate::cli::RootArgs;
use crate::commands::guest;
use crate::paths::{self, PathError};

/// The program that is the guest's PID 1.
const INIT: &str = "vmprobe-init";
/// Drivers that the guest needs.
const DRIVERS: [&str; 3] = ["virtio_pci", "overlay", "vmw_vsock_virtio_transport"];
/// Those for a folder as the root, and those for an image: file systems of distributions' disks among them.
const FOLDER_DRIVERS: [&str; 1] = ["virtiofs"];
const DISK_DRIVERS: [&str; 6] = ["virtio_blk", "ext4", "xfs", "btrfs", "erofs", "squashfs"];
/// The one for networks.
const NETWORK_DRIVER: &str = "virtio_net";
/// Tag of the root folder; others have it with a number behind it.
const ROOT_TAG: &str = "root";
/// Kinds of files in an initramfs (stat(2)), and their permissions.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;
/// `/dev/console` (Documentation/admin-guide/devices.txt), which the kernel opens for PID 1.
const CONSOLE: (u32, u32) = (5, 1);

/// What a guest needs, in a folder that is gone with this.
pub struct Prepared {
    folder: TempDir,
    /// Its devices.
    devices: Devices,
}

impl Prepared {
    /// The initramfs.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.path().join("initramfs")
    }

    /// Gives a guest the devices that it needs besides its own. The root's disk is the first.
    pub fn add_to(&self, devices: &mut Devices) {
        let own = self.devices.clone();
        devices.disks.splice(0..0, own.disks);
        devices.shares.extend(own.shares);
        devices.vsock = own.vsock;
    }

    /// The socket of its virtio sockets. The ones that the guest connects to have their port behind it.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("vsock")
    }
}

/// Makes ready what `root` asks for on this kernel, and the driver of networks if the guest has some.
///
/// # Errors
/// See [`RootError`].
pub fn prepare(kernel: &Path, root: &RootArgs, has_network: bool) -> Result<Prepared, RootError> {
    if let Some(path) = root.root.as_deref().filter(|path| !path.is_dir())
        && !root.is_disk()
    {
        return Err(RootError::NoRoot(path.to_owned()));
    }
    let job = job::of(root, ROOT_TAG)?;
    let init = read_init()?;
    let of_root = match job.root {
        Root::Share(_) => &FOLDER_DRIVERS[..],
        Root::Disk => &DISK_DRIVERS[..],
    };
    let mut wanted = [&DRIVERS[..], of_root].concat();
    wanted.extend(has_network.then_some(NETWORK_DRIVER));
    let modules = drivers(kernel, root.modules.as_deref(), &wanted)?;
    let folder = TempDir::with_prefix("vmprobe-run-").map_err(RootError::Write)?;
    let mut prepared = Prepared {
        folder,
        devices: Devices::default(),
    };
    prepared.devices.disks = disks(root)?;
    prepared.devices.shares = shares(root, &job)?;
    prepared.devices.vsock = Some(Vsock {
        path: paths::text(&prepared.socket())?,
        ..Default::default()
    });
    let written = File::create_new(prepared.initramfs())
        .and_then(|file| write(BufWriter::new(file), &init, &job, &modules));
    written.map_err(RootError::Write)?;
    Ok(prepared)
}

/// The root, which the guest can't change (PID 1 puts a folder for changes over it), then what it can.
fn shares(root: &RootArgs, job: &Job) -> Result<Vec<Share>, RootError> {
    let mut shares = Vec::new();
    if let (Some(path), Root::Share(tag)) = (&root.root, &job.root) {
        shares.push(Share {
            tag: tag.clone(),
            path: paths::text(path)?,
            mode: ShareMode::ReadOnly.into(),
        });
    }
    for (place, tag) in &job.mounts {
        // The folder has the same path in the root as it has there for the host.
        let base = root.root.as_deref().unwrap_or(Path::new("/"));
        let path = base.join(place.trim_start_matches('/'));
        shares.push(Share {
            tag: tag.clone(),
            path: paths::text(&path)?,
            mode: ShareMode::ReadWrite.into(),
        });
    }
    Ok(shares)
}

/// The image that is the root, which the guest can't change.
fn disks(root: &RootArgs) -> Result<Vec<Disk>, RootError> {
    let image = root.image();
    let disks = image.iter().map(guest::disk);
    Ok(disks.collect::<Result<_, PathError>>()?)
}

fn read_init() -> Result<Vec<u8>, RootError> {
    let beside = env::current_exe().ok();
    let path = beside
        .and_then(|own| Some(own.parent()?.join(INIT)))
        .unwrap_or_else(|| INIT.into());
    fs::read(&path).map_err(|cause| RootError::NoInit { path, cause })
}

/// A name in the initramfs and the bytes.
type Entry = (String, Vec<u8>);

/// The modules of the drivers that are wanted, named so that their order is that in which they are loaded.
fn drivers(kernel: &Path, given: Option<&Path>, wanted: &[&str]) -> Result<Vec<Entry>, RootError> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => {
            let release = release::of(kernel).map_err(|cause| RootError::Kernel {
                path: kernel.to_owned(),
                cause,
            })?;
            let folder = release.map(|release| Path::new("/lib/modules").join(release));
            // A kernel that somebody has just built may have all of them within itself.
            let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
                return Ok(Vec::new());
            };
            folder
        }
    };
    let modules = Modules::find(&folder)?.with_needs(wanted)?;
    let entries = modules.into_iter().zip(0..).map(|(module, place)| {
        let path = format!("{MODULES}/{place:02}-{}.ko", module.name);
        (path, module.bytes)
    });
    Ok(entries.collect())
}

fn write(mut to: impl Write, init: &[u8], job: &Job, modules: &[Entry]) -> io::Result<()> {
    let job = serde_json::to_vec(job)?;
    for folder in ["/dev", "/proc", "/sys", "/root", MODULES] {
        to = entry(to, folder, FOLDER, &[])?;
    }
    let console = newc::Builder::new("dev/console")
        .mode(DEVICE)
        .rdev_major(CONSOLE.0)
        .rdev_minor(CONSOLE.1);
    to = console.write(to, 0).finish()?;
    to = entry(to, "/init", PROGRAM, init)?;
    to = entry(to, JOB, FILE, &job)?;
    for (path, bytes) in modules {
        to = entry(to, path, FILE, bytes)?;
    }
    newc::trailer(to)?.flush()
}

fn entry<W: Write>(to: W, path: &str, mode: u32, bytes: &[u8]) -> io::Result<W> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let entry = newc::Builder::new(path.trim_start_matches('/')).mode(mode);
    let mut writer = entry.write(to, len);
    writer.write_all(bytes)?;
    writer.finish()
}
