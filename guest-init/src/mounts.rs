//! The guest's file systems.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::unix::fs::symlink,
    path::Path,
};

use rustix::{
    fs::{Mode, chmod},
    mount::{MountFlags, mount, mount_move},
};
use thiserror::Error;
use vmprobe_init::{Changes, JOB, Job, MODULES, Root, Task};

use crate::disk;

/// Where the root folder is mounted before it becomes the root; where it is without the guest's changes, and where
/// those are.
const ROOT: &str = "/root";
const LOWER: &str = "/lower";
const CHANGES: &str = "/changes";
/// The file systems of the kernel's that programs expect in a root: kind, place and options.
const SYSTEM_MOUNTS: [(&str, &str, &str); 5] = [
    ("proc", "proc", ""),
    ("sysfs", "sys", ""),
    ("devtmpfs", "dev", ""),
    ("tmpfs", "run", "mode=755"),
    ("tmpfs", "tmp", "mode=1777"),
];
/// The file system of shares.
const VIRTIO_FS: &str = "virtiofs";

/// A file system that can't be mounted.
#[derive(Debug, Error)]
#[error("can't mount {what} at {place}{hint}")]
pub struct MountError {
    pub what: String,
    pub place: String,
    pub hint: &'static str,
    pub source: io::Error,
}

/// Mounts what the kernel tells and takes by files.
pub fn early() -> Result<(), MountError> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mounted(kind, kind, place, "")?;
    }
    Ok(())
}

/// Makes the job's root the root folder, with all that its task expects in it.
pub fn enter_root(job: &Job) -> Result<(), Box<dyn std::error::Error>> {
    root(job)?;
    let own: &[_] = match job.task {
        // A system mounts the others as it likes, and keeps these (systemd's src/shared/mount-setup.c).
        Task::Init(_) => &SYSTEM_MOUNTS[..SYSTEM_MOUNTS.len() - 1],
        Task::Command(_) => &SYSTEM_MOUNTS,
    };
    for (kind, place, options) in own {
        let place = format!("{ROOT}/{place}");
        // A folder that isn't there can't be made in a root that can't be written: programs may miss it.
        if make_folder(&place).is_ok() {
            mounted(kind, kind, &place, options)?;
        }
    }
    if matches!(job.task, Task::Command(_)) {
        inside_dev()?;
    }
    for (place, tag) in &job.mounts {
        let place = format!("{ROOT}/{}", place.trim_start_matches('/'));
        make_folder(&place)?;
        share(tag, &place)?;
    }
    forget_initramfs();
    std::env::set_current_dir(ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")?;
    Ok(())
}

/// Gives back the memory of the files that the guest has booted from. What can't be removed stays.
fn forget_initramfs() {
    let _it_stays = fs::remove_dir_all(MODULES);
    for file in [JOB, "/init"] {
        let _it_stays = fs::remove_file(file);
    }
}

/// Mounts the root. A folder over it takes the changes that it isn't to keep.
fn root(job: &Job) -> Result<(), MountError> {
    let is_kept = job.changes == Changes::Root;
    let place = if is_kept { ROOT } else { LOWER };
    match &job.root {
        Root::Share(tag) => share(tag, place)?,
        Root::Disk => disk::mount_root(place, is_kept)?,
    }
    if is_kept {
        return Ok(());
    }
    mounted("tmpfs", "tmpfs", CHANGES, "mode=755")?;
    let [upper, work] = ["upper", "work"].map(|name| format!("{CHANGES}/{name}"));
    let options = format!("lowerdir={LOWER},upperdir={upper},workdir={work}");
    let made = make_folder(&upper).and_then(|()| make_folder(&work));
    made.map_err(|source| MountError {
        what: "changes".to_owned(),
        place: upper,
        hint: "",
        source,
    })?;
    let hint = " (the kernel needs CONFIG_OVERLAY_FS)";
    mounted("overlay", "overlay", ROOT, &options).map_err(|error| MountError { hint, ..error })
}

/// Terminals, shared memory and the links that every `/dev` has.
fn inside_dev() -> Result<(), MountError> {
    for (kind, name, options) in [
        ("devpts", "pts", "mode=620,ptmxmode=666"),
        ("tmpfs", "shm", "mode=1777"),
    ] {
        let place = format!("{ROOT}/dev/{name}");
        // A kernel may have no terminals.
        if make_folder(&place).is_ok() {
            let _there_are_none = mounted(kind, kind, &place, options);
        }
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let _it_may_be_there = symlink(target, format!("{ROOT}/dev/{name}"));
    }
    // Whatever its user, the command may use the null device and the like; devtmpfs gives some to root only.
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let _it_may_be_missing = chmod(
            format!("{ROOT}/dev/{name}"),
            Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH,
        );
    }
    Ok(())
}

fn share(tag: &str, place: &str) -> Result<(), MountError> {
    let hint = " (the kernel needs CONFIG_VIRTIO_FS and CONFIG_VIRTIO_PCI)";
    mounted(VIRTIO_FS, tag, place, "").map_err(|error| MountError { hint, ..error })
}

pub fn make_folder(path: &str) -> io::Result<()> {
    if Path::new(path).is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)
}

fn mounted(kind: &str, what: &str, place: &str, options: &str) -> Result<(), MountError> {
    let mount_it = || {
        make_folder(place)?;
        let options = CString::new(options)?;
        let options: Option<&CStr> = (!options.is_empty()).then_some(&options);
        Ok(mount(what, place, kind, MountFlags::empty(), options)?)
    };
    mount_it().map_err(|source| MountError {
        what: what.to_owned(),
        place: place.to_owned(),
        hint: "",
        source,
    })
}
