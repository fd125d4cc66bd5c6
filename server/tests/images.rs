//! Images on a disk that is too small for them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;
use vmprobe_client::{Client, ClientError, OnProgress, PushError};

/// Mounts a small file system in its own mount namespace, and becomes the server.
const SCRIPT: &str = "mount -t tmpfs -o size=4m,mode=700 none \"$1\" && \
                      exec \"$0\" --images \"$1\" --listen \"unix:$2\" --exit-with-stdin";

/// A server whose images are on a disk of 4 MiB.
struct Small {
    folder: TempDir,
    server: Child,
}

impl Small {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let images = folder.path().join("images");
        fs::create_dir(&images).unwrap();
        let mut server = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT])
            .arg(env!("CARGO_BIN_EXE_vmprobed"))
            .args([&images, &folder.path().join("a.sock")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "{line}");
        Self { folder, server }
    }

    async fn client(&self) -> Client {
        let socket = self.folder.path().join("a.sock");
        Client::connect(&format!("unix:{}", socket.display()))
            .await
            .unwrap()
    }

    fn file(&self, name: &str, len: usize) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, vec![7; len]).unwrap();
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _it_may_have_ended = self.server.wait();
    }
}

async fn push(client: &Client, file: &Path) -> Result<String, PushError> {
    let silent: OnProgress = Arc::new(|_| {});
    client
        .push_image(file, "", silent)
        .await
        .map(|image| image.sha256)
}

#[tokio::test]
async fn an_image_that_the_disk_has_no_room_for_is_refused_and_leaves_its_room_to_others() {
    let small = Small::start();
    let client = small.client().await;
    let (large, fits) = (small.file("large", 6 << 20), small.file("fits", 3 << 20));
    for _ in 0..2 {
        match push(&client, &large).await {
            Err(PushError::Refused {
                cause: ClientError::ResourceExhausted(message),
                ..
            }) => assert!(message.contains("disk has no room"), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    let kept = push(&client, &fits).await.unwrap();
    let images = client.list_images().await.unwrap();
    assert_eq!(images.len(), 1);
    assert_eq!(images[0].sha256, kept);
}
