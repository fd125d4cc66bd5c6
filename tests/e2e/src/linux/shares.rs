//! Folders of the host's in guests, by virtio-fs, while probes are at work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use vmprobe_client::v1::{Devices, Share, ShareMode};

use super::guest::{Config, Guest, VM, files};
use super::jumps;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with};

pub const TESTS: &[Test] = &[
    Test {
        name: "folders_of_the_host_s_are_mounted_by_6_12_while_probes_are_jumps",
        ids: &["VM09", "JP01", "SV11"],
        needs: Needs::Linux,
        run: |cx| shares(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "folders_of_the_host_s_are_mounted_by_6_1_while_probes_are_jumps",
        ids: &["VM09", "JP01"],
        needs: Needs::Linux,
        run: |cx| shares(cx, files::BZIMAGE_6_1),
    },
];

const VCPUS: u32 = 2;
/// Files that a guest makes from each CPU.
const MADE: u64 = 20;
/// Files in a folder that is shared.
const FILES: u64 = 60;
/// What a guest writes into files.
const CONTENT: &[u8] = b"written by the guest\n";

/// A checksum that depends on the order of the bytes.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte) + 1)
    })
}

/// Makes a folder with files of several lengths. Returns the sum of their checksums.
fn fill(folder: &Path, cx: &Context) -> io::Result<u64> {
    let mut random = cx.random();
    let mut sum = 0u64;
    for index in 0..FILES {
        let inner = folder.join(format!("folder-{}", index % 7));
        fs::create_dir_all(&inner)?;
        let mut bytes = vec![0; random.below(40_000) as usize];
        random.fill(&mut bytes);
        sum = sum.wrapping_add(checksum(&bytes));
        fs::write(inner.join(format!("file-{index}")), bytes)?;
    }
    Ok(sum)
}

/// Checks the results of a guest's changes in a folder.
fn check_changes(folder: &Path) -> Result<(), Failure> {
    let made = folder.join("made");
    let mut count = 0;
    for cpu in 0..VCPUS {
        for index in 0..MADE {
            let read = fs::read(made.join(format!("file-{cpu}-{index}"))).ok();
            let expected = (index % 2 == 0).then(|| CONTENT.repeat(index as usize + 1));
            check!(read == expected, "file {index} of CPU {cpu} is wrong");
            count += u64::from(expected.is_some());
        }
    }
    let there = fs::read_dir(&made).map_err(Failure::io("list what a guest has made"))?;
    check_eq!(there.count() as u64, count, "files in the guest's folder");
    Ok(())
}

fn shares(cx: &Context, kernel: &'static str) -> TestResult {
    let base = TempDir::new().map_err(Failure::io("make a folder for folders to share"))?;
    let made = |name: &str| -> Result<PathBuf, Failure> {
        let path = base.path().join(name);
        fs::create_dir_all(&path).map_err(Failure::io("make a folder to share"))?;
        Ok(path)
    };
    let (fixed, shared) = (made("fixed")?, made("shared")?);
    let fixed_sum = fill(&fixed, cx).map_err(Failure::io("fill a folder to share"))?;
    let shared_sum = fill(&shared, cx).map_err(Failure::io("fill a folder to share"))?;
    let share = |tag: &str, path: &Path, mode: ShareMode| Share {
        tag: tag.into(),
        path: path.to_string_lossy().into_owned(),
        mode: mode.into(),
    };
    let config = Config {
        kernel,
        vcpus: VCPUS,
        devices: Some(Devices {
            shares: vec![
                share("ro", &fixed, ShareMode::ReadOnly),
                share("rw", &shared, ShareMode::ReadWrite),
            ],
            ..Default::default()
        }),
        ..Config::new("workload=echo")
    };
    cx.block_on(async {
        let mut guest = Guest::hold_on(cx, &config, |command| {
            // If the owner of the server names folders, the shared ones are found in another way.
            if kernel == files::BZIMAGE_6_12 {
                command.args(["--files", "/", "--writable-files"]);
                command.arg(base.path());
            }
        })
        .await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        let names = ["rename", "remove"];
        guest
            .probes(&["rename=vfs_rename", "remove=vfs_unlink"])
            .await?;
        jumps::settle(&guest, &names).await?;
        for name in names {
            jumps::jump(&guest, name).await?;
        }
        let mut done = (0, 0);
        for (tag, sum) in [("ro", fixed_sum), ("rw", shared_sum)] {
            let report = guest.work(&format!("share at={tag} count={MADE}")).await?;
            check_eq!(report["files"], FILES, "files of the share {tag}");
            check_eq!(report["sum"], sum, "their checksums");
            if tag == "ro" {
                check_eq!(report["error"], libc::EROFS, "the error of a change");
                continue;
            }
            check_eq!(report["error"], Value::Null, "the error of a change");
            let count = |field: &str| report[field].as_u64().unwrap_or_default();
            done = (done.0 + count("renamed"), done.1 + count("removed"));
        }
        check_eq!(done.0, u64::from(VCPUS) * MADE, "renamed files");
        check_eq!(guest.listed("rename").await?.hits, done.0, "hits of rename");
        check_eq!(guest.listed("remove").await?.hits, done.1, "hits of remove");
        guest.remove(&names).await?;
        guest.end().await?;
        check!(
            !fixed.join("made").exists(),
            "a folder that is fixed has changed"
        );
        check_changes(&shared)?;
        pass_with(format!("{} files renamed, {} removed", done.0, done.1))
    })
}
