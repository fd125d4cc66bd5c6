//! A disk that is full: for images, for the log, and for what a client writes.

use std::fs::{File, OpenOptions};
use std::process::{Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;

use super::load;
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Outcome, Test, TestResult, check, check_eq, pass, wrong};

pub const IMAGES: Test = Test {
    name: "an_image_that_the_disk_has_no_room_for_is_refused_and_leaves_nothing",
    ids: &["SV07", "SV11"],
    needs: Needs::None,
    run: images,
};

pub const OUTPUT: Test = Test {
    name: "tiny_a_full_disk_ends_a_client_s_output_by_name_and_costs_the_server_its_log_only",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: output,
};

/// A file to which each write fails for lack of space (full(4)).
const FULL: &str = "/dev/full";
/// Size of the disk for images, and of an image that is larger and one that isn't.
const DISK: &str = "size=1m";
/// Size of the disk for what a client writes: less than a dump.
const SMALL_DISK: &str = "size=32k";
const LARGE: usize = 3 << 20;
const SMALL: usize = 1000;

/// A file system of its own, mounted until this is dropped.
struct Mounted(TempDir);

impl Mounted {
    /// Returns `None` if this user may not mount.
    fn new(size: &str) -> Result<Option<Self>, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", size, "none"])
            .arg(folder.path());
        let status = mount.stderr(Stdio::null()).status();
        let is_mounted = status.is_ok_and(|status| status.success());
        Ok(is_mounted.then_some(Self(folder)))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _it_goes_with_the_machine_else = Command::new("umount").arg(self.0.path()).status();
    }
}

fn images(cx: &Context) -> TestResult {
    let Some(disk) = Mounted::new(DISK)? else {
        return Ok(Outcome::Skip(
            "no file system can be mounted here".to_owned(),
        ));
    };
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let file = |name: &str, size: usize| {
        let path = folder.path().join(name);
        let written = std::fs::write(&path, vec![7; size]);
        written.map(|()| path).map_err(Failure::io("write a file"))
    };
    let (large, small) = (file("large", LARGE)?, file("small", SMALL)?);
    cx.block_on(async {
        let server = Server::start_with(cx, |command| {
            command.arg("--images").arg(disk.0.path().join("images"));
        })?;
        let client = server.client().await?;
        let push = async |file| client.push_image(file, "", Arc::new(|_| {})).await;
        let told = match push(&large).await {
            Err(error) => format!("{error:?}"),
            Ok(_) => return Err(wrong!("an image larger than the disk has room on it")),
        };
        check!(
            told.contains("ResourceExhausted") && told.contains("disk"),
            "not refused as the disk is full: {told}"
        );
        check_eq!(client.list_images().await?.len(), 0, "images");
        // The failed upload has left nothing that takes room.
        let pushed = push(&small).await.map_err(|error| wrong!("{error:?}"))?;
        check_eq!(pushed.size, SMALL as u64, "the size of an image");
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        pass()
    })
}

fn full() -> Result<File, Failure> {
    let opened = OpenOptions::new().write(true).open(FULL);
    opened.map_err(Failure::io(format!("open {FULL}")))
}

fn output(cx: &Context) -> TestResult {
    let Some(disk) = Mounted::new(SMALL_DISK)? else {
        return Ok(Outcome::Skip(
            "no file system can be mounted here".to_owned(),
        ));
    };
    let file = |name: &str| disk.0.path().join(name).to_string_lossy().into_owned();
    let (dump, lines, text) = (file("dump"), file("events.jsonl"), file("events.txt"));
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let log = full()?;
    cx.block_on(async {
        let server = Server::start_with(cx, |command| {
            command.stderr(log).env("VMPROBE_LOG", "trace");
        })?;
        let client = server.client().await?;
        let request = load::request(folder.path(), "vm", &load::kernel()?)?;
        client.create_vm(request).await?;
        for arguments in [
            vec!["trace", "p:all body", "--json"],
            vec!["dump", "--output", &dump],
            vec!["record", "p:all body", "--output", &lines],
            // The file is written only when its whole content is known.
            vec!["record", "p:all body", "--count", "5000", "--output", &text],
        ] {
            let mut command = Command::new(cx.program("vmprobe"));
            command.args(&arguments).args(["--vm", "vm"]);
            command.args(["--server", &server.endpoint]);
            command.stdin(Stdio::null()).stdout(full()?);
            let output = command.output().map_err(Failure::io("run vmprobe"))?;
            let errors = String::from_utf8_lossy(&output.stderr);
            check!(
                !output.status.success() && errors.contains("o space left on device"),
                "{arguments:?} ends with {}: {errors}",
                output.status
            );
        }
        while !client.list_probes("vm").await?.is_empty() {}
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        pass()
    })
}
