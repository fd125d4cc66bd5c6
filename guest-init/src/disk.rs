//! The root file system on a disk.

use std::{ffi::CString, fs, io, path::Path, thread, time::Duration};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::mounts::{MountError, make_folder};

/// The disk.
const DISK: &str = "vda";
/// How often the disk is looked for, and how long after each look: a driver finds its devices after it is loaded.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// File systems that are tried first, and options with which one of them is mounted on a disk that can't be written
/// although it was not unmounted (Documentation/filesystems/ext4, xfs(5), btrfs(5)).
const FIRST: [(&str, &str); 3] = [
    ("ext4", "noload"),
    ("xfs", "norecovery"),
    ("btrfs", "rescue=nologreplay"),
];
/// File systems that are never tried: those that are ext4's as well, and those that can't be a root. The kernel says on
/// its console what doesn't fit.
const OTHERS: [&str; 8] = [
    "ext2", "ext3", "fuseblk", "iso9660", "msdos", "udf", "vfat", "exfat",
];
/// Folders of which a root file system has one.
const FOLDERS: [&str; 2] = ["usr", "bin"];

/// Mounts the disk's root file system: that of its first partition that has one, or the disk's own.
///
/// The file system can be written once it is known to be the root: what else is on the disk stays as it is.
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

/// The disk's partitions, and the disk: where it has partitions, it is no file system itself.
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
    let all = partitions.chain([DISK.to_owned()]);
    Ok(all.map(|name| format!("/dev/{name}")).collect())
}

/// File systems to try, each with options: those that the kernel knows and that are on a device, which are lines
/// without `nodev` (proc(5)).
fn file_systems() -> io::Result<Vec<(String, &'static str)>> {
    let text = fs::read_to_string("/proc/filesystems")?;
    Ok(to_try(&text))
}

fn to_try(known: &str) -> Vec<(String, &'static str)> {
    let on_devices = known.lines().filter_map(|line| line.strip_prefix('\t'));
    let known: Vec<&str> = on_devices.collect();
    let first = FIRST.iter().filter(|(kind, _)| known.contains(kind));
    let first = first.flat_map(|(kind, options)| [(*kind, ""), (*kind, *options)]);
    let is_first = |kind: &str| FIRST.iter().any(|(first, _)| *first == kind);
    let others = known
        .iter()
        .filter(|kind| !is_first(kind) && !OTHERS.contains(kind));
    let all = first.chain(others.map(|kind| (*kind, "")));
    all.map(|(kind, options)| (kind.to_owned(), options))
        .collect()
}

fn mount_any(device: &str, place: &str, kinds: &[(String, &'static str)]) -> io::Result<()> {
    for (kind, options) in kinds {
        let options = CString::new(*options)?;
        let options = Some(options.as_c_str());
        let flags = MountFlags::RDONLY;
        if mount(device, place, kind.as_str(), flags, options).is_ok() {
            return Ok(());
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_file_systems_come_first_and_what_is_no_root_never() {
        let known = "nodev\tsysfs\n\tvfat\n\text3\n\terofs\n\text4\n\tfuseblk\n\tbtrfs\n";
        let tried = to_try(known);
        let tried: Vec<_> = tried
            .iter()
            .map(|(kind, options)| (kind.as_str(), *options))
            .collect();
        let expected = [
            ("ext4", ""),
            ("ext4", "noload"),
            ("btrfs", ""),
            ("btrfs", "rescue=nologreplay"),
            ("erofs", ""),
        ];
        assert_eq!(tried, expected);
    }
}
