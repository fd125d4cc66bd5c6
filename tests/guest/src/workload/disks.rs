//! Disks and the entropy device, by the kernel's own drivers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{module, threads};
use crate::plan::Plan;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Modules of the drivers, each after those that it needs. If a kernel has one of the first built in, there is no file
/// of it.
const DRIVERS: [&str; 15] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "virtio-rng",
    "failover",
    "net_failover",
    "virtio_net",
    "fuse",
    "virtiofs",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
];
/// `BLKDISCARD` and `BLKZEROOUT` (include/uapi/linux/fs.h): their argument is a start and a length in bytes.
const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKZEROOUT: libc::c_ulong = 0x127f;

/// Loads the drivers.
pub fn load_drivers() -> io::Result<Value> {
    let mut loaded = Vec::new();
    for name in DRIVERS {
        let path = module::file(name)?;
        let is_there = Path::new("/sys/module")
            .join(name.replace('-', "_"))
            .exists();
        if Path::new(&path).exists() && !is_there {
            module::load(&path)?;
            loaded.push(name);
        }
    }
    Ok(json!({ "loaded": loaded }))
}

/// Fills the disk `at`, each sector with its number, from all CPUs at once, in pieces of `count` sectors; zeroes the
/// second half of its first eight MiB in two ways; reads it back from the disk.
///
/// The report has the number of calls of `pwrite` and `pread`.
pub fn fill(plan: &Plan) -> io::Result<Value> {
    let disk = open(&plan.at, true)?;
    let sectors = sectors_of(&plan.at)?;
    let piece = plan.count.max(1);
    let cpus = threads::online_cpus()?.len() as u64;
    let (writes, reads) = (AtomicU64::new(0), AtomicU64::new(0));
    let share = sectors.div_ceil(cpus);
    let on_pieces = |act: &(dyn Fn(u64, u64) -> io::Result<()> + Sync)| {
        threads::on_each_cpu(|cpu| {
            let start = cpu as u64 * share;
            let end = (start + share).min(sectors);
            (start..end)
                .step_by(piece as usize)
                .try_for_each(|first| act(first, piece.min(end - first)))
        })
    };
    on_pieces(&|first, count| {
        writes.fetch_add(1, Ordering::Relaxed);
        disk.write_all_at(&pattern(first, count), first * SECTOR)
    })?;
    disk.sync_all()?;
    const QUARTER: u64 = 2 << 20;
    range(&disk, BLKZEROOUT, 2 * QUARTER, QUARTER)?;
    range(&disk, BLKDISCARD, 3 * QUARTER, QUARTER)?;
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let is_zero = |sector: u64| (2 * QUARTER..3 * QUARTER).contains(&(sector * SECTOR));
    let is_discarded = |sector: u64| (3 * QUARTER..4 * QUARTER).contains(&(sector * SECTOR));
    let wrong = AtomicU64::new(0);
    on_pieces(&|first, count| {
        reads.fetch_add(1, Ordering::Relaxed);
        let mut read = vec![0; (count * SECTOR) as usize];
        disk.read_exact_at(&mut read, first * SECTOR)?;
        let expected = pattern(first, count);
        let sectors = read.chunks(SECTOR as usize);
        let wrongs = sectors.zip(expected.chunks(SECTOR as usize)).zip(first..);
        let wrongs = wrongs.filter(|((read, written), sector)| {
            !is_discarded(*sector)
                && if is_zero(*sector) {
                    read.iter().any(|byte| *byte != 0)
                } else {
                    read != written
                }
        });
        wrong.fetch_add(wrongs.count() as u64, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(json!({
        "sectors": sectors,
        "writes": writes.into_inner(),
        "reads": reads.into_inner(),
        "wrong": wrong.into_inner(),
    }))
}

/// Reads all of the disk `at`, which can't be written.
pub fn look(plan: &Plan) -> io::Result<Value> {
    let refused = open(&plan.at, true)
        .and_then(|disk| disk.write_all_at(&[0; SECTOR as usize], 0))
        .err();
    let mut bytes = Vec::new();
    open(&plan.at, false)?.read_to_end(&mut bytes)?;
    let wrong = bytes
        .chunks(SECTOR as usize)
        .zip(0..)
        .filter(|(read, sector)| **read != pattern(*sector, 1)[..])
        .count();
    let about = |file: &str| fs::read_to_string(format!("/sys/block/{}/{file}", plan.at));
    Ok(json!({
        "sectors": bytes.len() as u64 / SECTOR,
        "wrong": wrong,
        "refused": refused.map(|error| error.raw_os_error()),
        "ro": about("ro")?.trim(),
        "serial": about("serial")?.trim(),
    }))
}

/// Reads `count` bytes of the entropy device. The report has the kernel's name of it, and how many different values
/// the bytes have.
pub fn random(plan: &Plan) -> io::Result<Value> {
    let mut bytes = vec![0; plan.count as usize];
    File::open("/dev/hwrng")?.read_exact(&mut bytes)?;
    let current = fs::read_to_string("/sys/class/misc/hw_random/rng_current")?;
    let mut values: Vec<u8> = bytes.clone();
    values.sort_unstable();
    values.dedup();
    Ok(json!({ "from": current.trim(), "bytes": bytes.len(), "values": values.len() }))
}

/// Opens a disk. The kernel may need a moment to make its file.
fn open(name: &str, write: bool) -> io::Result<File> {
    let path = format!("/dev/{name}");
    while !Path::new(&path).exists() {
        thread::sleep(Duration::from_millis(10));
    }
    OpenOptions::new().read(true).write(write).open(path)
}

fn sectors_of(name: &str) -> io::Result<u64> {
    let size = fs::read_to_string(format!("/sys/block/{name}/size"))?;
    size.trim().parse().map_err(io::Error::other)
}

/// Returns the content of sectors: each is filled with its own number.
fn pattern(first: u64, count: u64) -> Vec<u8> {
    let sectors = first..first + count;
    sectors
        .flat_map(|sector| sector.to_le_bytes().repeat(SECTOR as usize / 8))
        .collect()
}

fn range(disk: &File, request: libc::c_ulong, start: u64, len: u64) -> io::Result<()> {
    let range = [start, len];
    // SAFETY: both requests read two words.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), request as _, range.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
