//! Disks and entropy by virtio devices, with the kernel's own drivers, while probes are at work.

use std::fs::{self, OpenOptions};
use std::path::Path;

use imago::file::File as ImageFile;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder};
use tempfile::TempDir;
use vmprobe_client::v1::{Devices, Disk, DiskFormat, Probe};

use super::guest::{Config, Guest, files};
use super::jumps;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[
    Test {
        name: "disks_and_entropy_of_6_12_work_while_probes_are_jumps",
        ids: &["VM05", "JP01"],
        needs: Needs::Linux,
        run: |cx| devices(cx, files::BZIMAGE_6_12),
    },
    Test {
        name: "disks_and_entropy_of_6_1_work_while_probes_are_jumps",
        ids: &["VM05", "JP01"],
        needs: Needs::Linux,
        run: |cx| devices(cx, files::BZIMAGE_6_1),
    },
];

const SECTOR: usize = 512;
const RAW_LEN: u64 = 16 << 20;
const QCOW2_LEN: u64 = 12 << 20;
const READ_ONLY_LEN: u64 = 1 << 20;
/// The part of a disk that the guest zeroes, and the part that it discards.
const ZEROS: std::ops::Range<usize> = 4 << 20..6 << 20;
const GIVEN_UP: std::ops::Range<usize> = 6 << 20..8 << 20;

/// Functions that a disk's work passes, in the kernel and in the driver's module.
const PROBES: [&str; 5] = [
    "write=__x64_sys_pwrite64",
    "read=__x64_sys_pread64",
    "r:written __x64_sys_pwrite64",
    "submit=submit_bio",
    "request=virtio_blk:virtio_queue_rq",
];

/// Returns the content of `len` bytes: each sector is filled with its own number.
fn pattern(len: u64) -> Vec<u8> {
    let sectors = 0..len / SECTOR as u64;
    sectors
        .flat_map(|sector| sector.to_le_bytes().repeat(SECTOR / 8))
        .collect()
}

fn create_qcow2(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path)?;
    let image = Qcow2::<ImageFile>::create_builder(ImageFile::try_from(file)?);
    image.size(QCOW2_LEN).create()
}

fn read_qcow2(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = ImageFile::try_from(fs::File::open(path)?)?;
    let image = Qcow2::<ImageFile>::builder(file).open(DenyImplicitOpenGate::default())?;
    let mut bytes = vec![0; QCOW2_LEN as usize];
    FormatAccess::new(image).read(&mut bytes[..], 0)?;
    Ok(bytes)
}

/// Checks the bytes that a guest has left on a disk.
fn check_disk(bytes: &[u8], what: &str) -> Result<(), Failure> {
    let expected = pattern(bytes.len() as u64);
    for (at, (found, written)) in bytes
        .chunks(SECTOR)
        .zip(expected.chunks(SECTOR))
        .enumerate()
    {
        let at = at * SECTOR;
        if GIVEN_UP.contains(&at) {
            continue;
        }
        let is_right = if ZEROS.contains(&at) {
            found.iter().all(|byte| *byte == 0)
        } else {
            found == written
        };
        check!(
            is_right,
            "the sector at {at:#x} of the {what} disk is wrong"
        );
    }
    Ok(())
}

fn devices(cx: &Context, kernel: &'static str) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder for disks"))?;
    let path = |name: &str| folder.path().join(name);
    let (raw, qcow2, fixed) = (path("raw"), path("image.qcow2"), path("fixed"));
    let made = fs::write(&raw, vec![0xee; RAW_LEN as usize])
        .and_then(|()| create_qcow2(&qcow2))
        .and_then(|()| fs::write(&fixed, pattern(READ_ONLY_LEN)));
    made.map_err(Failure::io("make disks"))?;
    let disk = |path: &Path, format: DiskFormat, read_only| Disk {
        path: path.to_string_lossy().into_owned(),
        format: format.into(),
        read_only,
        ..Disk::default()
    };
    let config = Config {
        kernel,
        vcpus: 2,
        devices: Some(Devices {
            disks: vec![
                disk(&raw, DiskFormat::Unspecified, false),
                disk(&qcow2, DiskFormat::Qcow2, false),
                disk(&fixed, DiskFormat::Raw, true),
            ],
            entropy: true,
            ..Default::default()
        }),
        ..Config::new("workload=echo")
    };
    cx.block_on(async {
        let mut guest = Guest::boot(cx, &config).await?;
        guest.console.report("ready").await?;
        guest.work("drivers").await?;
        let probes = guest.probes(&PROBES).await?;
        let names: Vec<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
        jumps::settle(&guest, &names).await?;
        for name in &names {
            jumps::jump(&guest, name).await?;
        }

        let mut calls = (0, 0);
        for (name, len) in [("vda", RAW_LEN), ("vdb", QCOW2_LEN)] {
            let done = guest.work(&format!("disk-fill at={name} count=37")).await?;
            check_eq!(done["sectors"], len / SECTOR as u64, "sectors of {name}");
            check_eq!(done["wrong"], 0, "wrong sectors of {name}");
            let count = |field: &str| done[field].as_u64().unwrap_or_default();
            calls = (calls.0 + count("writes"), calls.1 + count("reads"));
        }
        let done = guest.work("disk-look at=vdc").await?;
        check_eq!(done["sectors"], READ_ONLY_LEN / SECTOR as u64, "sectors");
        check_eq!(done["wrong"], 0, "wrong sectors of the read-only disk");
        check_eq!(done["ro"], "1", "the read-only disk's flag");
        check_eq!(done["serial"], "fixed", "its name");
        check!(!done["refused"].is_null(), "it was written to");
        // The refused write counts as one of them.
        calls.0 += 1;
        let done = guest.work("random count=4096").await?;
        check_eq!(done["from"], "virtio_rng.0", "where random bytes come from");
        let values = done["values"].as_u64().unwrap_or_default();
        check!(values > 200, "4,096 random bytes have {values} values");

        let write = guest.listed("write").await?;
        let read = guest.listed("read").await?;
        let written = guest.listed("written").await?;
        let followed = |probe: &Probe| probe.hits + probe.missed;
        check_eq!(write.hits, calls.0, "calls of pwrite64");
        check_eq!(read.hits, calls.1, "calls of pread64");
        check_eq!(followed(&written), calls.0, "returns of pwrite64");
        let submitted = guest.listed("submit").await?.hits;
        let requests = guest.listed("request").await?.hits;
        check!(submitted > 0 && requests > 0, "nothing went to the disks");
        guest.remove(&names).await?;
        guest.end().await?;
        let bytes = fs::read(&raw).map_err(Failure::io("read the raw disk"))?;
        check_disk(&bytes, "raw")?;
        let bytes = read_qcow2(&qcow2).map_err(|error| wrong!("the qcow2 disk: {error}"))?;
        check_disk(&bytes, "qcow2")?;
        pass_with(format!(
            "{} calls, {requests} requests",
            write.hits + read.hits
        ))
    })
}
