//! The root file system on a disk.

use std::{ffi::CString, fs, io, path::Path, thread, time::Duration};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::mounts::{MountError, make_folder};

/// The disk.
const DISK: &str = "vda";
/// How often it is looked for, and how long after each look: a driver finds its devices after it is loaded.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// Options with which a file system on a disk that can't be written is mounted although it was not unmounted: none, then
/// those of ext4, and of XFS and Btrfs (Documentation/filesystems/ext4, xfs(5), btrfs(5)).
const OPTIONS: [&str; 4] = ["", "noload", "norecovery", "rescue=nologreplay"];
/// Folders of which a root file system has one.
const FOLDERS: [&str; 2] = ["usr", "bin"];

/// Mounts the disk's root file system: the disk's own, or that of its first partition that has one.
///
/// It can be written once it is known to be the root: what else is on the disk stays as it is.
///
/// # Errors
/// There is no disk, or none of its file systems is one that the kernel knows and a root.
pub fn mount_root(place: &str, is_writable: bool) -> Result<(), MountError> {
    let failed = |hint, source| MountError {
        what: format!("the root on /dev/{DISK}"),
        place: place.to_owned(),
        hint,
        source,
    };
    make_folder(place).map_err(|source| failed("", source))?;
    let devices = devices().map_err(|source| {
        let hint = " (the kernel needs CONFIG_VIRTIO_BLK and CONFIG_VIRTIO_PCI)";
        failed(hint, source)
    })?;
    let kinds = file_systems().map_err(|source| failed("", source))?;
    for device in devices {
        if mount_any(&device, place, &kinds).is_ok() {
            if FOLDERS.iter().any(|it| Path::new(place).join(it).is_dir()) {
                return match is_writable {
                    true => mount_remount(place, MountFlags::empty(), c"")
                        .map_err(|error| failed(" so that it can be written", error.into())),
                    false => Ok(()),
                };
            }
            let _another_is_mounted_over_it = unmount(place, UnmountFlags::empty());
        }
    }
    let hint = " (no file system on it is a root that this kernel knows)";
    Err(failed(hint, io::ErrorKind::NotFound.into()))
}

/// The disk and its partitions.
fn devices() -> io::Result<Vec<String>> {
    for _ in 0..LOOKS {
        if Path::new("/dev").join(DISK).exists() {
            break;
        }
        thread::sleep(PAUSE);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new("/sys/block").join(DISK))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A folder with the disk's name and a number is a partition (Documentation/ABI/stable/sysfs-block).
        if let Some(Ok(number)) = name.strip_prefix(DISK).map(str::parse::<u32>) {
            names.push((number, name));
        }
    }
    names.sort();
    let partitions = names.into_iter().map(|(_, name)| name);
    let all = [DISK.to_owned()].into_iter().chain(partitions);
    Ok(all.map(|name| format!("/dev/{name}")).collect())
}

/// The file systems that the kernel knows and that are on a device: lines without `nodev` (proc(5)).
fn file_systems() -> io::Result<Vec<String>> {
    let text = fs::read_to_string("/proc/filesystems")?;
    let on_devices = text.lines().filter_map(|line| line.strip_prefix('\t'));
    Ok(on_devices.map(str::to_owned).collect())
}

fn mount_any(device: &str, place: &str, kinds: &[String]) -> io::Result<()> {
    for kind in kinds {
        for options in OPTIONS {
            let options = CString::new(options)?;
            let flags = MountFlags::RDONLY;
            if mount(
                device,
                place,
                kind.as_str(),
                flags,
                Some(options.as_c_str()),
            )
            .is_ok()
            {
                return Ok(());
            }
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}
