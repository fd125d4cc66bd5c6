//! The images of other clients: seen and deleted only by clients that may control all VMs.

use std::fs;

use tempfile::TempDir;
use vmprobe_client::ClientError;

use crate::context::Context;
use crate::remote::{Remote, errors};
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass};

pub const OWNERS: Test = Test {
    name: "whoever_controls_all_vms_lists_and_deletes_the_images_of_others_and_nobody_else",
    ids: &["SV11"],
    needs: Needs::None,
    run: owners,
};

/// Restricts a client of the list to some VMs.
fn restrict(remote: &Remote, client: &str) -> Result<(), Failure> {
    let list = remote.certs().join("clients.toml");
    let text = fs::read_to_string(&list).map_err(Failure::io("read the list"))?;
    let name = format!("name = \"{client}\"\n");
    check!(text.contains(&name), "{client} isn't in {text}");
    let text = text.replace(&name, &format!("{name}vms = [\"web-*\"]\n"));
    fs::write(&list, text).map_err(Failure::io("write the list"))
}

fn owners(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let (kept, file) = (folder.path().join("images"), folder.path().join("kernel"));
    fs::write(&file, b"content").map_err(Failure::io("write a file"))?;
    let file = file.to_string_lossy().into_owned();
    let clients = [
        "alice=control",
        "bob=control",
        "carol=observe",
        "dave=control",
    ];
    let remote = Remote::start(cx, &clients, |command| {
        command.arg("--images").arg(&kept);
    })?;
    restrict(&remote, "dave")?;
    let digest = remote.done("alice", &["image", "push", &file, "--name", "linux"])?;
    remote.done("bob", &["image", "push", &file, "--name", "other"])?;

    let refused = "the images of others take the role `control` over all VMs";
    let all = ["image", "list", "--all"];
    let remove = ["image", "remove", "linux", "--owner", "client:alice"];
    for client in ["carol", "dave"] {
        // The server reads a changed list a moment later.
        while remote.run(client, &all)?.status.success() {}
        let output = remote.run(client, &all)?;
        check!(errors(&output).contains(refused), "{}", errors(&output));
    }
    let output = remote.run("dave", &remove)?;
    check!(errors(&output).contains(refused), "{}", errors(&output));
    // A client may name itself as the owner.
    let own = ["image", "list", "--owner", "client:dave"];
    check_eq!(remote.done("dave", &own)?, "", "images of dave");

    let listed = remote.done("bob", &all)?;
    let owners: Vec<_> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    check_eq!(owners, ["client:alice", "client:bob"], "owners");
    cx.block_on(async {
        // By the socket, the client is the server's own user.
        let owner = remote.server.client().await?;
        check_eq!(owner.list_images().await?.len(), 0, "the owner's images");
        let images = owner.list_images_of("*").await?;
        let names: Vec<_> = images.iter().flat_map(|image| &image.names).collect();
        check_eq!(names, ["linux", "other"], "names of all images");
        for wrong in ["alice", "user:alice", "client"] {
            match owner.list_images_of(wrong).await {
                Err(ClientError::InvalidArgument { fields, .. }) => {
                    check_eq!(fields, ["owner"], "the field for {wrong}");
                }
                other => check!(false, "{wrong}: {other:?}"),
            }
        }
        owner.delete_image_of("linux", "client:alice").await?;
        pass()
    })?;
    check_eq!(remote.done("alice", &["image", "list"])?, "", "alice's");
    let content = kept
        .join("content")
        .join(digest.trim_start_matches("sha256-"));
    check!(content.is_file(), "bob's image has lost its content");
    remote.done(
        "alice",
        &["image", "remove", &digest, "--owner", "client:bob"],
    )?;
    check!(!content.exists(), "the content of no image is kept");
    pass()
}
