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
use vmprobe_init::{Job, Root};

use crate::disk;

/// Where the root folder is mounted before it becomes the root; where it is without the guest's changes, and where
/// those are.
const ROOT: &str = "/root";
const LOWER: &str = "/lower";
const CHANGES: &str = "/changes";
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

/// Makes the job's root the root folder, with all that programs expect in it.
pub fn enter_root(job: &Job) -> Result<(), Box<dyn std::error::Error>> {
    root(&job.root)?;
    for (kind, place, options) in [
        ("proc", "proc", ""),
        ("sysfs", "sys", ""),
        ("devtmpfs", "dev", ""),
        ("tmpfs", "tmp", "mode=1777"),
        ("tmpfs", "run", "mode=755"),
    ] {
        let place = format!("{ROOT}/{place}");
        // A folder that isn't there can't be made in a root that can't be written: programs may miss it.
        if make_folder(&place).is_ok() {
            mounted(kind, kind, &place, options)?;
        }
    }
    inside_dev()?;
    for (place, tag) in &job.mounts {
        let place = format!("{ROOT}/{}", place.trim_start_matches('/'));
        make_folder(&place)?;
        share(tag, &place)?;
    }
    std::env::set_current_dir(ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")?;
    Ok(())
}

/// Mounts the root with a folder over it that takes all changes and is gone with the guest.
fn root(root: &Root) -> Result<(), MountError> {
    match root {
        Root::Share(tag) => share(tag, LOWER)?,
        Root::Disk => disk::mount_root(LOWER)?,
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
        // A kernel without terminals is still one.
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
    // Whoever the command runs as may use the null device and the like; devtmpfs gives some to root only.
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
