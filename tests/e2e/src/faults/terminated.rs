//! A server that ends under 100,000 events a second, by SIGTERM and by SIGKILL.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tempfile::TempDir;
use vmprobe_client::v1::{EndingKind, VmState};
use vmprobe_client::{Client, ClientError, Message};

use super::load::{self, Follower};
use crate::context::Context;
use crate::process::Process;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TERMINATED: Test = Test {
    name: "tiny_sigterm_under_100000_events_a_second_loses_no_event_that_is_not_counted",
    ids: &["SV07", "SV03"],
    needs: Needs::Tiny,
    run: terminated,
};

pub const KILLED: Test = Test {
    name: "tiny_sigkill_under_load_leaves_nothing_that_hinders_a_restart",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: killed,
};

/// The VM.
const VM: &str = "loaded";
/// Probes of the VM that is declared.
const DECLARED: usize = 64;

fn folder() -> Result<TempDir, Failure> {
    TempDir::new().map_err(Failure::io("make a folder"))
}

fn terminated(cx: &Context) -> TestResult {
    let folder = folder()?;
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        let request = load::request(folder.path(), VM, &load::kernel()?)?;
        client.create_vm(request).await?;
        let (mut follower, rate) = Follower::under_load(&client, VM).await?;
        server.process().signal(libc::SIGTERM)?;
        let ending = loop {
            match follower.stream.next().await? {
                Some(Message::Ended(ending)) => break ending,
                Some(message) => follower.take(message)?,
                None => return Err(wrong!("the stream has no end")),
            }
        };
        check_eq!(ending.kind(), EndingKind::Killed, "the guest's ending");
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        follower.is_whole()?;
        pass_with(format!(
            "{rate:.0} events a second; {} events and {} lost",
            follower.events, follower.lost
        ))
    })
}

/// Starts a server with a VM that it makes at its start and that is under load at once.
fn start(cx: &Context, folder: &Path) -> Result<Server, Failure> {
    let path = |name: &str| folder.join(name);
    let server = Server::start_with(cx, |command| {
        command
            .args(["--listen", &format!("unix:{}", path("socket").display())])
            .args(["--metrics", &format!("unix:{}", path("metrics").display())])
            .arg("--vms")
            .arg(path("vms.toml"))
            .arg("--images")
            .arg(path("images"))
            .env("TMPDIR", path("tmp"));
    })?;
    server.next_endpoint()?;
    server.metrics_endpoint()?;
    Ok(server)
}

/// Opens a stream of the declared VM, and waits until events come.
async fn followed(client: &Client) -> Result<vmprobe_client::EventStream, Failure> {
    loop {
        let vms = client.list_vms().await?;
        let is_running = vms.iter().any(|vm| vm.state() == VmState::Running);
        if is_running && client.list_probes(VM).await?.len() == DECLARED {
            let mut stream = client.events(VM, Vec::new()).await?;
            stream.next().await?;
            return Ok(stream);
        }
        tokio::task::yield_now().await;
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Result<BTreeSet<String>, Failure> {
    let mut found = BTreeSet::new();
    let entries = fs::read_dir(folder).map_err(Failure::io("list a folder"))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        }
        found.insert(path.to_string_lossy().into_owned());
    }
    Ok(found)
}

fn killed(cx: &Context) -> TestResult {
    let folder = folder()?;
    let folder = folder.path();
    fs::create_dir(folder.join("tmp")).map_err(Failure::io("make a folder"))?;
    let request = load::request(folder, VM, &load::kernel()?)?;
    let probes: Vec<_> = (0..DECLARED)
        .map(|at| format!("\"p:load{at} body\""))
        .collect();
    let declared = format!(
        "[[vm]]\nname = \"{VM}\"\nkernel = \"{}\"\nmemory_mib = 64\nprobes = [{}]\n",
        request.kernel,
        probes.join(", ")
    );
    fs::write(folder.join("vms.toml"), declared).map_err(Failure::io("write a file"))?;
    cx.block_on(async {
        let server = start(cx, folder)?;
        let mut stream = followed(&server.client().await?).await?;
        let before = files(folder)?;
        let processes: Vec<Process> = server.process().started()?;
        check!(!processes.is_empty(), "the server has started no process");
        server.process().signal(libc::SIGKILL)?;
        let lost = loop {
            match stream.next().await {
                Ok(Some(Message::Batch { .. } | Message::Progress { .. })) => {}
                Ok(other) => return Err(wrong!("a stream of a killed server ends by {other:?}")),
                Err(error) => break error,
            }
        };
        check!(matches!(lost, ClientError::Disconnected(_)), "{lost:?}");
        while processes.iter().any(|process| process.exists()) {
            tokio::task::yield_now().await;
        }
        drop(server);
        let left: Vec<_> = files(folder)?.difference(&before).cloned().collect();
        check!(
            left.is_empty(),
            "files that a killed server has left: {left:?}"
        );

        let server = start(cx, folder)?;
        let client = server.client().await?;
        followed(&client).await?;
        check_eq!(client.list_vms().await?.len(), 1, "VMs that come back");
        check_eq!(server.stop()?, Some(0), "exit code of the next server");
        let left: Vec<_> = files(folder)?.difference(&before).cloned().collect();
        check!(
            left.is_empty(),
            "files that the next server has left: {left:?}"
        );
        pass_with(format!("{} processes ended", processes.len()))
    })
}
