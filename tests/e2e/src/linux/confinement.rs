//! What the threads of a VM's process may still do while its guest works with every device.

use std::collections::BTreeSet;
use std::fs;

use tempfile::TempDir;
use vmprobe_client::v1::{Devices, Disk, Share, ShareMode, VirtioConsole, Vsock};

use super::guest::{Config, Guest, files};
use super::jumps;
use crate::context::Context;
use crate::process::value;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "each_thread_of_a_vm_is_confined_to_what_it_is_for",
    ids: &["VM08"],
    needs: Needs::Linux,
    run: confined,
}];

/// The virtio console is the guest's console: input goes there.
const KERNEL_ARGS: &str = "quiet cryptomgr.notests initcall_blacklist=jent_mod_init console=hvc0";
const DISK_LEN: usize = 1 << 20;
/// Ends of the names of threads that there must be: a name has 15 characters.
const THREADS: [&str; 11] = [
    "vcpu0", "vcpu1", "-end", "-jumps", "-rings", "-block", "-filesys", "-entropy", "-vsock",
    "-console", "starter",
];
/// The thread of a file system, which acts for the users of the guest.
const FILE_SYSTEM: &str = "-filesys";
/// Capabilities of files (linux/capability.h): `CAP_CHOWN` to `CAP_FSETID`, `CAP_SETGID`, `CAP_SETUID`, `CAP_MKNOD`
/// and `CAP_SETFCAP`.
const OF_FILES: u64 = 0b1_1111 | 1 << 6 | 1 << 7 | 1 << 27 | 1 << 31;

fn confined(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::write(path("disk"), vec![0; DISK_LEN])
        .and_then(|()| fs::create_dir(path("share")))
        .map_err(Failure::io("make a disk and a folder to share"))?;
    let config = Config {
        kernel: files::BZIMAGE_6_12,
        vcpus: 2,
        kernel_args: KERNEL_ARGS,
        devices: Some(Devices {
            disks: vec![Disk {
                path: path("disk"),
                ..Disk::default()
            }],
            shares: vec![Share {
                tag: "share".into(),
                path: path("share"),
                mode: ShareMode::ReadWrite.into(),
            }],
            entropy: true,
            vsock: Some(Vsock {
                path: path("socket"),
                cid: 0,
            }),
            console: Some(VirtioConsole::default()),
            ..Devices::default()
        }),
        ..Config::new("workload=echo")
    };
    cx.block_on(async {
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        guest.probes(&["write=vfs_write"]).await?;
        jumps::settle(&guest, &["write"]).await?;
        guest.work("share at=share count=3").await?;

        let threads = guest.process()?.threads()?;
        for end in THREADS {
            let is_there = threads.iter().any(|(name, _)| name.ends_with(end));
            check!(is_there, "no thread {end} in {:?}", names(&threads));
        }
        for (name, status) in &threads {
            let number = |field: &str, radix| {
                let value = value(status, field).unwrap_or_default();
                u64::from_str_radix(value, radix).map_err(|_| wrong!("{field} of {name}: {value}"))
            };
            check_eq!(number("Seccomp", 10)?, 2, "filters hold for {name}");
            check_eq!(number("NoNewPrivs", 10)?, 1, "no new privileges of {name}");
            let kept = match name.ends_with(FILE_SYSTEM) || name == "starter" {
                true => OF_FILES,
                false => 0,
            };
            for field in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                check_eq!(number(field, 16)? & !kept, 0, "{field} of {name}");
            }
        }
        guest.remove(&["write"]).await?;
        guest.end().await?;
        pass_with(format!("{} threads", threads.len()))
    })
}

fn names(threads: &[(String, String)]) -> BTreeSet<&str> {
    threads.iter().map(|(name, _)| name.as_str()).collect()
}
