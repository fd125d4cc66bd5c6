//! Files and processes, as a build or the run of a test suite makes them.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::{CHILD, sys, threads};
use crate::plan::Plan;

const MOUNTED: &str = "/disk";
/// Files of a folder, and bytes of the longest.
const FILES: usize = 8;
const LONGEST: usize = 32 << 10;

/// Mounts the disk `at`, times `rounds` rounds of `count` folders' work on the first CPU, and unmounts it. A folder's
/// work: a process that executes a program; files of several lengths that are written, one of them to the disk, looked
/// at, read back, renamed, listed and removed.
pub fn run(plan: &Plan) -> io::Result<Value> {
    threads::pin_to(&[0])?;
    fs::create_dir_all(MOUNTED)?;
    let (source, target) = (
        CString::new(format!("/dev/{}", plan.at))?,
        CString::new(MOUNTED)?,
    );
    // SAFETY: the strings end in NUL and outlive the call; there is no data.
    sys::check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            c"ext4".as_ptr(),
            0,
            std::ptr::null(),
        )
    })?;
    let times = (0..plan.rounds).map(|_| round(plan.count));
    let times = times.collect::<io::Result<Vec<_>>>();
    // SAFETY: the string ends in NUL.
    sys::check(unsafe { libc::umount(target.as_ptr()) })?;
    Ok(json!({ "ns": times?, "folders": plan.count }))
}

/// Nanoseconds of one round.
fn round(count: u64) -> io::Result<u64> {
    let bytes: Vec<u8> = (0..LONGEST).map(|at| at as u8).collect();
    let start = Instant::now();
    for index in 0..count {
        folder(&Path::new(MOUNTED).join(format!("folder-{index}")), &bytes)?;
    }
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn folder(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let status = Command::new("/init").arg(CHILD).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("a child ended with {status}")));
    }
    fs::create_dir(path)?;
    let name = |index: usize, what: &str| path.join(format!("{what}-{index}"));
    for index in 0..FILES {
        let mut file = File::create(name(index, "new"))?;
        for piece in bytes[..LONGEST >> index].chunks(4 << 10) {
            file.write_all(piece)?;
        }
        if index == FILES - 1 {
            file.sync_all()?;
        }
    }
    let mut read = Vec::with_capacity(LONGEST);
    for index in 0..FILES {
        let (new, old) = (name(index, "new"), name(index, "old"));
        let expected = LONGEST >> index;
        read.clear();
        File::open(&new)?.read_to_end(&mut read)?;
        if fs::metadata(&new)?.len() != expected as u64 || read != bytes[..expected] {
            return Err(io::Error::other(format!("{} is wrong", new.display())));
        }
        fs::rename(new, old)?;
    }
    for entry in fs::read_dir(path)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(path)
}
