//! Images: files that clients upload.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use vmprobe_client::v1::image_service_client::ImageServiceClient;
use vmprobe_client::v1::upload_image_request::Part;
use vmprobe_client::v1::{BeginImage, UploadImageRequest};

use crate::context::Context;
use crate::remote::{Remote, errors};
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const UPLOADS: Test = Test {
    name: "an_upload_that_fails_says_why_and_leaves_nothing",
    ids: &["SV11"],
    needs: Needs::None,
    run: uploads,
};

pub const CRASH: Test = Test {
    name: "a_server_that_is_killed_keeps_its_images_and_nothing_of_an_upload_under_way",
    ids: &["SV11"],
    needs: Needs::None,
    run: crash,
};

pub const CLIENTS: Test = Test {
    name: "each_client_has_images_of_its_own_and_sends_none_twice",
    ids: &["SV11"],
    needs: Needs::None,
    run: clients,
};

pub const GUEST: Test = Test {
    name: "a_remote_client_makes_a_guest_of_files_that_it_hands_over_and_nothing_else",
    ids: &["SV11"],
    needs: Needs::Tiny,
    run: guest,
};

/// The SHA-256 of `test`.
const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn folder() -> Result<TempDir, Failure> {
    TempDir::new().map_err(Failure::io("make a folder"))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn entries(folder: &Path) -> Result<usize, Failure> {
    let found = fs::read_dir(folder).map_err(Failure::io("list a folder"))?;
    Ok(found.count())
}

fn begin(name: &str, size: u64, sha256: &str) -> Part {
    Part::Begin(BeginImage {
        name: name.into(),
        size,
        sha256: sha256.into(),
    })
}

fn chunk(bytes: &[u8]) -> Part {
    Part::Chunk(bytes.to_vec())
}

async fn upload(server: &Server, parts: Vec<Part>) -> Result<(), Status> {
    let channel = server.channel().await;
    let channel = channel.map_err(|failure| Status::internal(failure.to_string()))?;
    let requests = parts
        .into_iter()
        .map(|part| UploadImageRequest { part: Some(part) });
    let requests: Vec<_> = requests.collect();
    let mut images = ImageServiceClient::new(channel);
    images.upload_image(tokio_stream::iter(requests)).await?;
    Ok(())
}

fn uploads(cx: &Context) -> TestResult {
    let folder = folder()?;
    let kept = folder.path().join("images");
    let server = Server::start_with(cx, |command| {
        command.arg("--images").arg(&kept);
        command.args([
            "--max-image",
            "1",
            "--max-images",
            "1",
            "--upload-timeout",
            "1",
        ]);
        command.args(["--max-uploads", "1", "--max-image-count", "1"]);
    })?;
    let mib = 1 << 20;
    let too_long = vec![0; mib + 1];
    let cases = [
        (vec![], Code::InvalidArgument, "begins with `begin`"),
        (
            vec![chunk(b"test")],
            Code::InvalidArgument,
            "begins with `begin`",
        ),
        (
            vec![begin("", 4, TEST), begin("", 4, TEST)],
            Code::InvalidArgument,
            "begins with `begin`",
        ),
        (
            vec![begin("", 4, "9f")],
            Code::InvalidArgument,
            "64 hexadecimal digits",
        ),
        (
            vec![begin("", 0, TEST)],
            Code::InvalidArgument,
            "at least one byte",
        ),
        (
            vec![begin("a/b", 4, TEST)],
            Code::InvalidArgument,
            "an image's name",
        ),
        (
            vec![begin("", mib as u64 + 1, TEST)],
            Code::ResourceExhausted,
            "--max-image",
        ),
        (
            vec![begin("", 4, TEST), chunk(b"tes")],
            Code::InvalidArgument,
            "after 3 of 4 bytes",
        ),
        (
            vec![begin("", 4, TEST), chunk(b"test"), chunk(b"s")],
            Code::InvalidArgument,
            "4 were announced",
        ),
        (
            vec![begin("", 4, TEST), chunk(b"tost")],
            Code::InvalidArgument,
            "was announced",
        ),
        (
            vec![begin("", 4, TEST), Part::Zeros(u64::MAX)],
            Code::InvalidArgument,
            "a part of an image",
        ),
        (
            vec![begin("", mib as u64, TEST), chunk(&too_long)],
            Code::InvalidArgument,
            "a part of an image",
        ),
        (
            vec![begin("", 4, TEST), chunk(b"")],
            Code::InvalidArgument,
            "a part of an image",
        ),
    ];
    cx.block_on(async {
        for (parts, code, part) in cases {
            let status = match upload(&server, parts).await {
                Err(status) => status,
                Ok(()) => return Err(wrong!("an upload wasn't refused: {part}")),
            };
            check_eq!(status.code(), code, "the code of {status:?}");
            check!(status.message().contains(part), "{status:?}, not {part}");
        }
        // An upload whose client stops sending is ended, and so is one whose client goes away.
        let (parts, stream) = mpsc::channel(2);
        let first = UploadImageRequest {
            part: Some(begin("", 4, TEST)),
        };
        parts
            .send(first.clone())
            .await
            .map_err(|_| wrong!("no stream"))?;
        let channel = server.channel().await?;
        let mut images = ImageServiceClient::new(channel.clone());
        let idle = images.upload_image(ReceiverStream::new(stream)).await;
        let status = idle
            .err()
            .ok_or_else(|| wrong!("an idle upload has no end"))?;
        check_eq!(status.code(), Code::Aborted, "the code of {status:?}");
        check!(status.message().contains("--upload-timeout"), "{status:?}");
        check_eq!(
            entries(&kept.join("unfinished"))?,
            0,
            "what failed uploads have left"
        );
        check_eq!(
            entries(&kept.join("content"))?,
            0,
            "what failed uploads have left"
        );

        let whole = || vec![begin("", 4, TEST), chunk(b"test")];
        let (parts, stream) = mpsc::channel(2);
        let going = tokio::spawn(async move {
            let mut images = ImageServiceClient::new(channel);
            images.upload_image(ReceiverStream::new(stream)).await
        });
        parts.send(first).await.map_err(|_| wrong!("no stream"))?;
        while entries(&kept.join("unfinished"))? == 0 {
            tokio::task::yield_now().await;
        }
        let refused = upload(&server, whole()).await;
        let status = refused
            .err()
            .ok_or_else(|| wrong!("a second upload at a time"))?;
        check!(status.message().contains("--max-uploads"), "{status:?}");
        going.abort();
        while entries(&kept.join("unfinished"))? > 0 {
            tokio::task::yield_now().await;
        }
        while upload(&server, whole()).await.is_err() {}
        // The same content again takes no quota; another one is one too many.
        upload(&server, vec![begin("named", 4, TEST)]).await?;
        // Nor does an answer wait for content that isn't needed.
        let mut more = vec![begin("", 4, TEST)];
        more.extend(vec![chunk(&vec![7; mib]); 16]);
        upload(&server, more).await?;
        let other = upload(&server, vec![begin("", 5, &TEST.replace('9', "8"))]).await;
        let status = other.err().ok_or_else(|| wrong!("one image too many"))?;
        check!(status.message().contains("--max-image-count"), "{status:?}");
        let client = server.client().await?;
        let images = client.list_images().await?;
        check_eq!(images.len(), 1, "images");
        check_eq!(images[0].names, ["named"], "names");
        pass()
    })
}

fn crash(cx: &Context) -> TestResult {
    let folder = folder()?;
    let kept = folder.path().join("images");
    let start = || {
        Server::start_with(cx, |command| {
            command.arg("--images").arg(&kept);
        })
    };
    let server = start()?;
    cx.block_on(async {
        upload(&server, vec![begin("kept", 4, TEST), chunk(b"test")]).await?;
        let channel = server.channel().await?;
        let (parts, stream) = mpsc::channel(2);
        let under_way = tokio::spawn(async move {
            let mut images = ImageServiceClient::new(channel);
            images.upload_image(ReceiverStream::new(stream)).await
        });
        for part in [begin("lost", 8, &TEST.replace('9', "8")), chunk(b"part")] {
            let request = UploadImageRequest { part: Some(part) };
            parts.send(request).await.map_err(|_| wrong!("no stream"))?;
        }
        while entries(&kept.join("unfinished"))? == 0 {
            tokio::task::yield_now().await;
        }
        // Only one server may use the folder.
        let second = Command::new(cx.program("vmprobed"))
            .arg("--images")
            .arg(&kept)
            .arg("--listen")
            .arg(format!("unix:{}", text(&folder.path().join("second.sock"))))
            .stdin(Stdio::null())
            .output()
            .map_err(Failure::io("start vmprobed"))?;
        check_eq!(
            second.status.code(),
            Some(2),
            "exit code of a second server"
        );
        check!(
            errors(&second).contains("is another server's"),
            "{}",
            errors(&second)
        );
        server.process().signal(libc::SIGKILL)?;
        let lost = under_way.await.map_err(|error| wrong!("{error}"))?;
        check!(lost.is_err(), "an upload to a killed server ended well");
        check_eq!(
            entries(&kept.join("unfinished"))?,
            1,
            "uploads that were cut off"
        );
        drop(server);
        let server = start()?;
        check_eq!(
            entries(&kept.join("unfinished"))?,
            0,
            "what the crash has left"
        );
        let images = server.client().await?.list_images().await?;
        check_eq!(images.len(), 1, "images");
        check_eq!(images[0].names, ["kept"], "their names");
        check_eq!(entries(&kept.join("content"))?, 1, "contents");
        pass()
    })
}

fn clients(cx: &Context) -> TestResult {
    let folder = folder()?;
    let path = |name: &str| folder.path().join(name);
    let (kept, audit, file) = (path("images"), path("audit.jsonl"), path("kernel"));
    // Longer than a part, with zeros in it.
    let content = [vec![7; 1 << 20], vec![0; 3 << 20], vec![8; 100]].concat();
    fs::write(&file, &content).map_err(Failure::io("write a file"))?;
    let clients = ["alice=control", "bob=control", "carol=observe"];
    let remote = Remote::start(cx, &clients, |command| {
        command
            .arg("--images")
            .arg(&kept)
            .arg("--audit-log")
            .arg(&audit);
    })?;
    let file = text(&file);
    let digest = remote.done("alice", &["image", "push", &file, "--name", "linux"])?;
    let in_store = kept
        .join("content")
        .join(digest.trim_start_matches("sha256-"));
    let stored = fs::read(&in_store).map_err(Failure::io("read what was handed over"))?;
    check!(stored == content, "the content has changed on its way");
    let uploads = || -> Result<usize, Failure> {
        let log = fs::read_to_string(&audit).map_err(Failure::io("read the audit log"))?;
        Ok(log
            .lines()
            .filter(|line| line.contains("UploadImage"))
            .count())
    };
    check_eq!(uploads()?, 1, "uploads");
    check_eq!(
        remote.done("alice", &["image", "push", &file])?,
        digest,
        "what is printed"
    );
    check_eq!(uploads()?, 1, "uploads after the same file again");
    let pushed = remote.done(
        "alice",
        &["image", "push", &file, "--name", "stable", "-o", "json"],
    )?;
    let pushed: Value =
        serde_json::from_str(&pushed).map_err(|error| wrong!("{error}: {pushed}"))?;
    check!(
        pushed["names"].to_string().contains("stable"),
        "the names in {pushed}"
    );

    let list = remote.done("alice", &["image", "list", "--json"])?;
    let image: Value = serde_json::from_str(&list).map_err(|error| wrong!("{error}: {list}"))?;
    check_eq!(
        image["names"],
        serde_json::json!(["linux", "stable"]),
        "names"
    );
    check_eq!(image["size"], content.len(), "size");
    for other in ["bob", "carol"] {
        check_eq!(
            remote.done(other, &["image", "list"])?,
            "",
            "images of {other}"
        );
    }
    let refused = |client: &str, arguments: &[&str], part: &str| {
        let output = remote.run(client, arguments)?;
        check_eq!(output.status.code(), Some(1), "exit code of {arguments:?}");
        check!(
            errors(&output).contains(part),
            "{}, not {part}",
            errors(&output)
        );
        Ok::<(), Failure>(())
    };
    let image = format!("image:{digest}");
    for name in ["image:linux", &image] {
        let none = format!("no image called `{}`", name.trim_start_matches("image:"));
        refused("bob", &["vm", "create", "--kernel", name], &none)?;
    }
    refused(
        "bob",
        &["image", "remove", "linux"],
        "no image called `linux`",
    )?;
    refused(
        "carol",
        &["image", "push", &file],
        "takes the role `control`",
    )?;
    refused(
        "alice",
        &["image", "push", &text(folder.path())],
        "isn't a regular file",
    )?;
    refused(
        "alice",
        &["image", "push", "/nowhere"],
        "can't read /nowhere",
    )?;
    // The client may name no path of the host's.
    refused(
        "bob",
        &[
            "vm",
            "create",
            "--push",
            "never",
            "--kernel",
            &text(&in_store),
        ],
        "may name no files of its host",
    )?;
    // Both clients have the image, and it exists until the last has deleted it.
    check_eq!(
        remote.done("bob", &["image", "push", &file])?,
        digest,
        "bob's image"
    );
    check_eq!(uploads()?, 4, "uploads, carol's and bob's included");
    remote.done("alice", &["image", "remove", "stable"])?;
    check!(in_store.exists(), "bob's image has gone with alice's");
    remote.done("bob", &["image", "remove", &digest])?;
    check!(!in_store.exists(), "nobody's image is still there");
    pass()
}

fn guest(cx: &Context) -> TestResult {
    let folder = folder()?;
    let path = |name: &str| folder.path().join(name);
    let (kept, kernel, disk) = (path("images"), path("kernel"), path("disk"));
    fs::write(&kernel, crate::tiny::power_off_image()?).map_err(Failure::io("write a kernel"))?;
    fs::write(&disk, [9; 4096]).map_err(Failure::io("write a disk"))?;
    let remote = Remote::start(cx, &["alice=control"], |command| {
        command.arg("--images").arg(&kept);
    })?;
    let (kernel, disk) = (text(&kernel), text(&disk));
    let create = ["vm", "create", "--name", "a", "--memory", "64", "--hold"];
    let files = ["--kernel", &kernel, "--disk", &disk];
    check_eq!(
        remote.done("alice", &[&create[..], &files].concat())?,
        "a",
        "what is printed"
    );
    let contents = |folder: PathBuf| entries(&folder.join("content"));
    check_eq!(contents(kept.clone())?, 2, "images");
    let shown = remote.done("alice", &["vm", "info", "--vm", "a", "--json"])?;
    let shown: Value = serde_json::from_str(&shown).map_err(|error| wrong!("{error}: {shown}"))?;
    let image = shown["kernel"].as_str().unwrap_or_default();
    check!(image.starts_with("image:sha256-"), "the kernel is {image}");
    let digest = image.trim_start_matches("image:");
    let output = remote.run("alice", &["image", "remove", digest])?;
    check!(
        errors(&output).contains("used by a"),
        "an image in use was deleted: {}",
        errors(&output)
    );
    remote.done("alice", &["vm", "start", "--vm", "a"])?;
    let ending = remote.run("alice", &["vm", "wait", "--vm", "a"])?;
    check_eq!(
        ending.status.code(),
        Some(0),
        "the guest's end: {}",
        errors(&ending)
    );
    // A second guest of the same images, by their names.
    remote.done("alice", &["image", "push", &kernel, "--name", "tiny"])?;
    remote.done("alice", &["image", "push", &disk, "--name", "disk"])?;
    let again = [
        "vm",
        "create",
        "--name",
        "b",
        "--memory",
        "64",
        "--kernel",
        "image:tiny",
    ];
    let disks = [
        "--disk",
        "image:disk",
        "--disk",
        "image:disk",
        "--disk",
        "image:disk,ro",
    ];
    remote.done("alice", &[&again[..], &disks].concat())?;
    let ending = remote.run("alice", &["vm", "wait", "--vm", "b"])?;
    check_eq!(
        ending.status.code(),
        Some(0),
        "the guest's end: {}",
        errors(&ending)
    );
    for vm in ["a", "b"] {
        remote.done("alice", &["vm", "delete", "--vm", vm])?;
    }
    remote.done("alice", &["image", "remove", "tiny", "disk"])?;
    check_eq!(contents(kept)?, 0, "images that are left");
    pass()
}
