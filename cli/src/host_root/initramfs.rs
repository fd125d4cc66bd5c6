//! What a guest with a host's folder or an image as its root boots from.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cpio::newc;
use tempfile::TempDir;
use vmprobe_client::v1::{CreateVmRequest, Devices, Share, ShareMode, Vsock};
use vmprobe_init::{Changes, JOB, Job, MODULES, Task};

use super::error::RootError;
use super::job;
use super::modules::Modules;
use super::release;
use crate::cli::{RootArgs, RootPlace};
use crate::commands::guest;
use crate::paths;

/// The program that is the guest's PID 1.
const INIT: &str = "vmprobe-init";
/// The driver of the bus that all devices are on.
const BUS_DRIVER: &str = "virtio_pci";
/// The driver of the folder for changes.
const CHANGES_DRIVER: &str = "overlay";
/// The drivers of the file systems that distributions' disks have.
const DISK_FILE_SYSTEMS: [&str; 5] = ["ext4", "xfs", "btrfs", "erofs", "squashfs"];
/// The drivers of file systems that a system mounts by itself: boot partitions and seeds of cloud-init's with the
/// tables of characters that they need, CD-ROMs, and what systemd mounts on the first access.
const SYSTEM_FILE_SYSTEMS: [&str; 6] = [
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "isofs",
    "autofs4",
    "binfmt_misc",
];
/// Tag of the root folder; others have it with a number behind it.
const ROOT_TAG: &str = "root";
/// Kinds of files in an initramfs (stat(2)), and their permissions.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;
/// Devices (Documentation/admin-guide/devices.txt): the console, which the kernel opens for PID 1, and the null device,
/// which stands for it where the console's driver is a module.
const DEVICES: [(&str, u32, u32); 2] = [("dev/console", 5, 1), ("dev/null", 1, 3)];

/// What a guest needs, in a folder that is deleted when this is dropped.
pub struct Prepared {
    folder: TempDir,
    /// Its devices.
    devices: Devices,
}

impl Prepared {
    /// Returns where the initramfs is.
    fn initramfs(&self) -> PathBuf {
        self.folder.path().join("initramfs")
    }

    /// Makes a guest boot from it, with the devices that it needs besides its own. The root's disk is the first.
    ///
    /// # Errors
    /// The path of the folder for temporary files is no text.
    pub fn add_to(&self, request: &mut CreateVmRequest) -> Result<(), RootError> {
        request.initramfs = paths::text(&self.initramfs())?;
        let devices = request.devices.get_or_insert_default();
        let own = self.devices.clone();
        devices.disks.splice(0..0, own.disks);
        devices.shares.extend(own.shares);
        if own.vsock.is_some() {
            devices.vsock = own.vsock;
        }
        Ok(())
    }

    /// Returns the socket of a command's virtio sockets. The ones that the guest connects to have their port behind it.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("vsock")
    }
}

/// Makes ready what `root` asks for on this kernel, for a guest that has these devices besides.
///
/// # Errors
/// See [`RootError`].
pub fn prepare(
    kernel: &Path,
    root: &RootArgs,
    others: Option<&Devices>,
) -> Result<Prepared, RootError> {
    let Some((place, changes)) = root.place() else {
        let missing = root.root.clone().unwrap_or_default();
        return Err(RootError::NoRoot(missing));
    };
    let job = job::of(root, (&place, changes), ROOT_TAG)?;
    let init = read_init()?;
    let folder = TempDir::with_prefix("vmprobe-run-").map_err(RootError::Write)?;
    let mut prepared = Prepared {
        folder,
        devices: Devices::default(),
    };
    match &place {
        RootPlace::Folder(folder) => prepared.devices.shares = shares(folder, &job)?,
        RootPlace::Disk(disk) => prepared.devices.disks = vec![guest::disk(disk)?],
    }
    if let Task::Command(_) = job.task {
        prepared.devices.vsock = Some(Vsock {
            path: paths::text(&prepared.socket())?,
            ..Default::default()
        });
    }
    let mut wanted = vec![BUS_DRIVER];
    if changes == Changes::Memory {
        wanted.push(CHANGES_DRIVER);
    }
    for devices in [Some(&prepared.devices), others].into_iter().flatten() {
        wanted.extend(drivers_of(devices));
    }
    if let RootPlace::Disk(_) = place {
        wanted.extend(DISK_FILE_SYSTEMS);
    }
    if let Task::Init(_) = job.task {
        wanted.extend(SYSTEM_FILE_SYSTEMS);
    }
    let modules = modules(kernel, root.modules.as_deref(), &wanted)?;
    let written = File::create_new(prepared.initramfs())
        .and_then(|file| write(BufWriter::new(file), &init, &job, &modules));
    written.map_err(RootError::Write)?;
    Ok(prepared)
}

/// Returns the drivers of devices, by their modules' names.
fn drivers_of(devices: &Devices) -> Vec<&'static str> {
    let all = [
        ("virtio_blk", !devices.disks.is_empty()),
        ("virtiofs", !devices.shares.is_empty()),
        ("virtio_net", !devices.networks.is_empty()),
        ("virtio_rng", devices.entropy),
        ("vmw_vsock_virtio_transport", devices.vsock.is_some()),
        ("virtio_console", devices.console.is_some()),
    ];
    let wanted = all.into_iter().filter(|(_, is_wanted)| *is_wanted);
    wanted.map(|(driver, _)| driver).collect()
}

/// Returns the root, which the guest can't change unless it is to keep changes, then the folders in it that it can
/// change.
fn shares(root: &Path, job: &Job) -> Result<Vec<Share>, RootError> {
    let mode = match job.changes {
        Changes::Memory => ShareMode::ReadOnly,
        Changes::Root => ShareMode::ReadWrite,
    };
    let mut shares = vec![Share {
        tag: ROOT_TAG.to_owned(),
        path: paths::text(root)?,
        mode: mode.into(),
    }];
    for (place, tag) in &job.mounts {
        // The folder has the same path in the root as it has there for the host.
        let path = root.join(place.trim_start_matches('/'));
        shares.push(Share {
            tag: tag.clone(),
            path: paths::text(&path)?,
            mode: ShareMode::ReadWrite.into(),
        });
    }
    Ok(shares)
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

/// Reads the modules of the drivers that are wanted, named so that their order is that in which they are loaded.
fn modules(kernel: &Path, given: Option<&Path>, wanted: &[&str]) -> Result<Vec<Entry>, RootError> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => {
            let release = release::of(kernel).map_err(|cause| RootError::Kernel {
                path: kernel.to_owned(),
                cause,
            })?;
            let folder = release.map(|release| Path::new("/lib/modules").join(release));
            // A kernel that the user has just built may have all drivers built in.
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
    for (path, major, minor) in DEVICES {
        let device = newc::Builder::new(path).mode(DEVICE);
        let device = device.rdev_major(major).rdev_minor(minor);
        to = device.write(to, 0).finish()?;
    }
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
