//! A guest made of files that a remote client uploads.

use std::fs;

use tempfile::TempDir;

use super::guest::{Config, Guest, VM, files};
use crate::context::Context;
use crate::remote::Remote;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass};

pub const TESTS: &[Test] = &[Test {
    name: "a_remote_client_boots_6_12_of_files_that_it_hands_over",
    ids: &["SV11"],
    needs: Needs::Linux,
    run: handed_over,
}];

/// Bytes of the disk.
const DISK: usize = 12 << 20;

fn handed_over(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let (kept, disk) = (folder.path().join("images"), folder.path().join("disk"));
    fs::write(&disk, vec![0xee; DISK]).map_err(Failure::io("make a disk"))?;
    let remote = Remote::start(cx, &["alice=control"], |command| {
        command.arg("--images").arg(&kept);
    })?;
    let config = Config {
        kernel: files::BZIMAGE_6_12,
        ..Config::new("workload=echo")
    };
    let request = config.request(cx);
    let disk_argument = disk.to_string_lossy();
    let create = [
        ["vm", "create", "--name", VM, "--hold", "--memory", "512"],
        [
            "--kernel",
            &request.kernel,
            "--initramfs",
            &request.initramfs,
            "--cmdline",
            &request.cmdline,
            "--entropy",
        ],
    ];
    let arguments = [&create.concat()[..], &["--disk", &disk_argument]].concat();
    check_eq!(remote.done("alice", &arguments)?, VM, "what is printed");
    let sums = || -> Result<Vec<(String, u64)>, Failure> {
        let mut found = Vec::new();
        for entry in fs::read_dir(kept.join("content")).map_err(Failure::io("list images"))? {
            let entry = entry.map_err(Failure::io("list images"))?;
            let len = entry
                .metadata()
                .map_err(Failure::io("look at an image"))?
                .len();
            found.push((entry.file_name().to_string_lossy().into_owned(), len));
        }
        found.sort();
        Ok(found)
    };
    let images = sums()?;
    check_eq!(images.len(), 3, "images");
    cx.block_on(async {
        let alice = remote.client("alice").await?;
        let mut guest = Guest::made(remote.server, alice).await?;
        guest.client.start_vm(VM).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        let done = guest.work("disk-fill at=vda count=37").await?;
        check_eq!(done["sectors"], DISK / 512, "sectors of the disk");
        check_eq!(done["wrong"], 0, "wrong sectors");
        // The guest has changed its copy, but neither the image nor the file.
        let (name, _) = images
            .iter()
            .find(|(_, len)| *len == DISK as u64)
            .cloned()
            .unwrap_or_default();
        for file in [kept.join("content").join(name), disk] {
            let bytes = fs::read(&file).map_err(Failure::io("read a disk"))?;
            check!(
                bytes.iter().all(|byte| *byte == 0xee),
                "{} has changed",
                file.display()
            );
        }
        guest.client.delete_vm(VM).await?;
        for image in guest.client.list_images().await? {
            guest
                .client
                .delete_image(&format!("sha256-{}", image.sha256))
                .await?;
        }
        check_eq!(sums()?, [], "images that are left");
        pass()
    })
}
