//! Devices that can't be made.

use std::fs::{self, File};
use std::path::Path;

use tempfile::TempDir;
use vmprobe_client::v1::network::Backend;
use vmprobe_client::v1::{
    CreateVmRequest, Devices, Disk, DiskFormat, Network, Passt, Share, Tap, Vsock,
};

use super::all_refused;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult};

pub const REFUSED: Test = Test {
    name: "devices_that_can_not_be_had_are_refused_and_leave_nothing_behind",
    ids: &["VM05", "VM09"],
    needs: Needs::None,
    run: refused,
};

/// Files that can't be devices.
struct Files {
    folder: TempDir,
    /// A disk that a process has locked, and that lock.
    busy: String,
    _lock: File,
}

impl Files {
    fn new() -> Result<Self, Failure> {
        let temporary = TempDir::new().map_err(Failure::io("make a folder for devices"))?;
        let folder = temporary.path();
        let made = || {
            fs::create_dir(folder.join("within"))?;
            fs::write(folder.join("short"), [0; 511])?;
            fs::write(
                folder.join("like-qcow2"),
                b"QFI\xfb and no more".repeat(100),
            )?;
            fs::write(folder.join("text"), "text\n".repeat(1000))?;
            fs::write(folder.join("busy"), [0; 4096])?;
            let lock = File::open(folder.join("busy"))?;
            lock.try_lock_shared().map_err(std::io::Error::other)?;
            Ok(lock)
        };
        let lock = made().map_err(Failure::io("make files of devices"))?;
        Ok(Self {
            busy: text(&folder.join("busy")),
            folder: temporary,
            _lock: lock,
        })
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name))
    }
}

fn disk(path: String, format: DiskFormat) -> Devices {
    Devices {
        disks: vec![Disk {
            path,
            format: format.into(),
            ..Disk::default()
        }],
        ..Default::default()
    }
}

fn shares(shares: &[(&str, String)]) -> Devices {
    let share = |(tag, path): &(&str, String)| Share {
        tag: (*tag).to_owned(),
        path: path.clone(),
        ..Default::default()
    };
    Devices {
        shares: shares.iter().map(share).collect(),
        ..Default::default()
    }
}

fn vsock(path: String, cid: u32) -> Devices {
    Devices {
        vsock: Some(Vsock { path, cid }),
        ..Default::default()
    }
}

fn network(backend: Option<Backend>, mac: &str) -> Devices {
    Devices {
        networks: vec![Network {
            backend,
            mac: mac.to_owned(),
            limit: None,
        }],
        ..Default::default()
    }
}

fn tap(name: &str) -> Option<Backend> {
    let name = name.to_owned();
    Some(Backend::Tap(Tap { name }))
}

fn passt(socket: String) -> Option<Backend> {
    Some(Backend::Passt(Passt { socket }))
}

fn refused(cx: &Context) -> TestResult {
    const WRONG: &str = "InvalidArgument";
    const NOT_NOW: &str = "FailedPrecondition";
    const RAW: DiskFormat = DiskFormat::Raw;
    let files = Files::new()?;
    let path = |name: &str| files.path(name);
    let folder = path("within");
    let devices = [
        (disk(String::new(), RAW), WRONG, "path of a disk's file"),
        (disk(path("missing"), RAW), WRONG, "can't be opened"),
        (disk(folder.clone(), RAW), WRONG, "neither a file nor"),
        (disk(path("short"), RAW), WRONG, "at least one sector"),
        (disk(files.busy.clone(), RAW), NOT_NOW, "is in use"),
        (
            disk(path("text"), DiskFormat::Qcow2),
            WRONG,
            "no image of the format qcow2",
        ),
        (
            disk(path("like-qcow2"), DiskFormat::Unspecified),
            WRONG,
            "looks like a qcow2 image",
        ),
        (shares(&[("", folder.clone())]), WRONG, "it is empty"),
        (shares(&[("t", path("missing"))]), WRONG, "can't be shared"),
        (shares(&[("t", path("text"))]), WRONG, "can't be shared"),
        (
            shares(&[("t", folder.clone()), ("t", folder)]),
            WRONG,
            "another share has it",
        ),
        (
            network(tap("no such name"), ""),
            WRONG,
            "is no name of a tap interface",
        ),
        (network(tap("tap-missing"), ""), WRONG, "`ip tuntap add dev"),
        (
            network(tap("lo"), "1:2"),
            WRONG,
            "is no address of a network",
        ),
        (network(None, ""), WRONG, "a tap interface or to passt"),
        (
            network(passt(path("missing")), ""),
            WRONG,
            "start it with `passt --socket",
        ),
        (vsock(path("text"), 3), WRONG, "is no socket"),
        (vsock(path("s"), 2), WRONG, "can't have the CID 2"),
        (vsock(path("missing/s"), 3), WRONG, "can't be made"),
        (
            shares(&vec![("t", path("within")); 32]),
            WRONG,
            "at most 31",
        ),
    ];
    let kernel = files.folder.path().join("kernel");
    fs::write(&kernel, crate::tiny::power_off_image()?).map_err(Failure::io("write a kernel"))?;
    let cases = devices.map(|(devices, code, message)| {
        let request = CreateVmRequest {
            kernel: text(&kernel),
            memory_mib: 64,
            devices: Some(devices),
            ..Default::default()
        };
        (request, code, message)
    });
    all_refused(cx, &cases)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
