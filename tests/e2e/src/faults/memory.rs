//! Processes that run out of memory: of address space, as `RLIMIT_AS` has it.

use std::io;

use tempfile::TempDir;
use vmprobe_client::ClientError;
use vmprobe_client::v1::EndingKind;

use super::load::{self, COUNT};
use crate::context::Context;
use crate::process::Process;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::tiny::vm::number;

pub const BATCH: Test = Test {
    name: "a_vm_s_process_without_memory_for_a_batch_refuses_it_whole_or_ends_and_others_go_on",
    ids: &["SV07"],
    needs: Needs::Host,
    run: batch,
};

pub const START: Test = Test {
    name: "tiny_a_vm_that_there_is_no_memory_for_is_refused_by_that_name_and_others_go_on",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: start,
};

/// Probes of the batch: more than the limits have room for.
const PROBES: usize = 30_000;
/// How much address space is left, in MiB: none, and amounts that run out in the middle.
const LEFT: [u64; 3] = [0, 4, 16];
/// The VM without memory, and the one beside it.
const VM: &str = "short";
const OTHER: &str = "other";

/// Limits a process to this much more address space than it has now. Returns the limit before.
fn leave(process: Process, mib: u64) -> Result<libc::rlimit, Failure> {
    let now = process.status("VmSize")? << 10;
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    set(process, None, Some(&mut before))?;
    let new = libc::rlimit {
        rlim_cur: now + (mib << 20),
        ..before
    };
    set(process, Some(&new), None)?;
    Ok(before)
}

/// prlimit(2) of the address space.
fn set(
    process: Process,
    new: Option<&libc::rlimit>,
    old: Option<&mut libc::rlimit>,
) -> Result<(), Failure> {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both are null, or point to a structure that outlives the call.
    match unsafe { libc::prlimit(process.0 as libc::pid_t, libc::RLIMIT_AS, new, old) } {
        0 => Ok(()),
        _ => Err(Failure::io("limit a process's memory")(
            io::Error::last_os_error(),
        )),
    }
}

/// Makes both guests. The probe of the second one counts each pass.
async fn guests(server: &Server, folder: &TempDir) -> Result<vmprobe_client::Client, Failure> {
    let client = server.client().await?;
    let kernel = load::kernel()?;
    for name in [VM, OTHER] {
        let mut request = load::request(folder.path(), name, &kernel)?;
        request.hold = true;
        client.create_vm(request).await?;
    }
    client.register_probes(OTHER, load::specs(1)?).await?;
    client.start_vm(OTHER).await?;
    client.start_vm(VM).await?;
    Ok(client)
}

/// Checks that the other guest's count is that of its probe.
async fn counts(client: &vmprobe_client::Client) -> Result<(), Failure> {
    client.pause_vm(OTHER).await?;
    let hits = client.list_probes(OTHER).await?[0].hits;
    let counted = number(&client.read_memory(OTHER, 0, COUNT, 8).await?);
    check_eq!(hits, counted, "hits of the probe in the other guest");
    client.resume_vm(OTHER).await?;
    Ok(())
}

fn batch(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    cx.block_on(async {
        let mut told = Vec::new();
        for left in LEFT {
            let server = Server::start(cx)?;
            let client = guests(&server, &folder).await?;
            let text = async || client.read_memory(VM, 0, 0x20_0000, 256).await;
            let whole = text().await?;
            let process = server.vm_process(VM)?;
            let before = leave(process, left)?;
            let answer = client.register_probes(VM, load::specs(PROBES)?).await;
            let outcome = match answer {
                Ok(probes) => {
                    check_eq!(probes.len(), PROBES, "probes registered");
                    "it had room"
                }
                Err(ClientError::FailedPrecondition(why)) => {
                    let ending = client.wait_vm(VM).await?;
                    check_eq!(ending.kind(), EndingKind::Failed, "{}", ending.detail);
                    check!(why.contains("the process of VM"), "{why}");
                    check!(!process.exists(), "its process is still there: {why}");
                    "the VM ended"
                }
                Err(ClientError::ResourceExhausted(why)) => {
                    set(process, Some(&before), None)?;
                    check_eq!(client.list_probes(VM).await?.len(), 0, "probes: {why}");
                    check!(text().await? == whole, "the text isn't whole");
                    "it was refused"
                }
                Err(other) => return Err(wrong!("with {left} MiB: {other:?}")),
            };
            counts(&client).await?;
            told.push(format!("{left} MiB: {outcome}"));
            client.delete_vm(VM).await?;
            check_eq!(server.stop()?, Some(0), "exit code of the server");
        }
        pass_with(told.join(", "))
    })
}

fn start(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = guests(&server, &folder).await?;
        // Processes that the server starts inherit its limits.
        let before = leave(server.process(), 256)?;
        let mut large = load::request(folder.path(), "large", &load::kernel()?)?;
        large.memory_mib = 64 << 10;
        let refused = match client.create_vm(large).await {
            Err(error) => error,
            Ok(_) => return Err(wrong!("a guest of 64 GiB has its memory")),
        };
        let told = refused.to_string();
        check!(
            matches!(refused, ClientError::ResourceExhausted(_)) && told.contains("memory"),
            "{refused:?}"
        );
        check_eq!(client.list_vms().await?.len(), 2, "VMs");
        counts(&client).await?;
        set(server.process(), Some(&before), None)?;
        let next = load::request(folder.path(), "next", &load::kernel()?)?;
        client.create_vm(next).await?;
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        pass_with(told)
    })
}
