//! Folders of the host's, by the kernel's virtio-fs.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::threads;
use crate::plan::Plan;

/// Where shares are mounted.
const MOUNTED: &str = "/tmp/share";
/// The content of files that are made here, repeated.
const CONTENT: &[u8] = b"written by the guest\n";

/// Mounts the share `at`, reads all files in it, and tries to change it: from each CPU makes `count` files, renames
/// each and removes every second one. Unmounts it.
///
/// The report has the number of files that were there and a checksum of them, and then the counts of changes, or the
/// error that prevented them.
pub fn run(plan: &Plan) -> io::Result<Value> {
    fs::create_dir_all(MOUNTED)?;
    let (tag, target) = (CString::new(plan.at.as_str())?, CString::new(MOUNTED)?);
    // SAFETY: the strings end in NUL and outlive the call; there is no data.
    done(unsafe {
        libc::mount(
            tag.as_ptr(),
            target.as_ptr(),
            c"virtiofs".as_ptr(),
            0,
            std::ptr::null(),
        )
    })?;
    let mut files = Vec::new();
    find(Path::new(MOUNTED), &mut files)?;
    let mut sum = 0u64;
    for path in &files {
        sum = sum.wrapping_add(checksum(&fs::read(path)?));
    }
    let mut report = match change(plan.count) {
        Ok(report) => report,
        Err(error) => json!({ "error": error.raw_os_error() }),
    };
    report["files"] = files.len().into();
    report["sum"] = sum.into();
    // SAFETY: the string ends in NUL.
    done(unsafe { libc::umount(target.as_ptr()) })?;
    Ok(report)
}

fn change(count: u64) -> io::Result<Value> {
    let folder = Path::new(MOUNTED).join("made");
    fs::create_dir(&folder)?;
    let (renamed, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    threads::on_each_cpu(|cpu| {
        for index in 0..count {
            let name = |what: &str| folder.join(format!("{what}-{cpu}-{index}"));
            let content = CONTENT.repeat(index as usize + 1);
            fs::write(name("new"), &content)?;
            fs::rename(name("new"), name("file"))?;
            renamed.fetch_add(1, Ordering::Relaxed);
            if fs::read(name("file"))? != content {
                return Err(io::Error::other(
                    "a file reads otherwise than it was written",
                ));
            }
            if index % 2 == 1 {
                fs::remove_file(name("file"))?;
                removed.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    })?;
    Ok(json!({ "renamed": renamed.into_inner(), "removed": removed.into_inner() }))
}

/// All files below a folder.
fn find(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// A checksum that depends on the order of the bytes.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte) + 1)
    })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
