//! The processes of VMs: what happens to them, and to others, when one dies.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use tiny_kernel as image;
use vmprobe_client::v1::{CreateVmRequest, EndingKind, VmState};
use vmprobe_client::{Client, ClientError};

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};
use crate::tiny::power_off_image;

pub const KILLED: Test = Test {
    name: "a_vm_whose_process_is_killed_is_told_as_failed_and_others_go_on",
    ids: &["VM08", "SV07"],
    needs: Needs::Tiny,
    run: killed,
};

pub const SERVER_KILLED: Test = Test {
    name: "the_processes_of_vms_end_with_a_server_that_is_killed",
    ids: &["VM08", "SV07"],
    needs: Needs::Tiny,
    run: server_killed,
};

pub const UNPRIVILEGED: Test = Test {
    name: "a_server_with_no_privilege_beyond_the_kvm_device_runs_a_guest",
    ids: &["VM08"],
    needs: Needs::Tiny,
    run: unprivileged,
};

/// A user with no rights of its own, `nobody`.
const NOBODY: u32 = 65534;
const KVM: &str = "/dev/kvm";

/// A request for a VM that runs until it is ended.
fn spinning(name: &str) -> Result<CreateVmRequest, Failure> {
    let kernel = image::build(|a, _| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.jmp(again)
    })?;
    request(name, &kernel)
}

pub(super) fn request(name: &str, kernel: &[u8]) -> Result<CreateVmRequest, Failure> {
    let path = std::env::temp_dir().join("process-kernel");
    fs::write(&path, kernel).map_err(Failure::io("write a kernel"))?;
    Ok(CreateVmRequest {
        name: name.into(),
        kernel: path.to_string_lossy().into_owned(),
        memory_mib: 64,
        ..Default::default()
    })
}

/// Checks that a call was refused because the VM's process has died.
fn is_gone<T>(result: Result<T, ClientError>) -> Result<(), Failure> {
    match result {
        Err(ClientError::FailedPrecondition(message)) => {
            check!(
                message.contains("the process of VM `a` has ended (signal: 9"),
                "{message}"
            );
            Ok(())
        }
        Err(other) => Err(wrong!("{other:?} isn't what is told of a dead process")),
        Ok(_) => Err(wrong!("a dead process has answered")),
    }
}

fn killed(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        for name in ["a", "b"] {
            client.create_vm(spinning(name)?).await?;
        }
        let mut events = client.events("a", Vec::new()).await?;
        let waits = {
            let client: Client = server.client().await?;
            tokio::spawn(async move { client.wait_vm("a").await })
        };
        let process = server.vm_process("a")?;
        process.signal(libc::SIGKILL)?;

        let lost = loop {
            match events.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Err(wrong!("the events ended as if the guest had")),
                Err(error) => break error,
            }
        };
        is_gone::<()>(Err(lost))?;
        let ending = waits.await.map_err(|error| wrong!("{error}"))??;
        check_eq!(ending.kind(), EndingKind::Failed, "the guest's ending");
        check!(ending.detail.contains("signal: 9"), "{}", ending.detail);
        let vm = client.get_vm("a").await?;
        check_eq!(vm.state(), VmState::Ended, "state of the VM");
        check_eq!(vm.ending, Some(ending), "its ending");
        is_gone(client.list_probes("a").await)?;
        check!(!process.exists(), "the process is still there");

        let other = client.get_vm("b").await?;
        check_eq!(other.state(), VmState::Running, "state of the other VM");
        client.pause_vm("b").await?;
        let names: Vec<_> = client.list_vms().await?;
        let names: Vec<_> = names.iter().map(|vm| vm.name.as_str()).collect();
        check_eq!(names, ["a", "b"], "VMs");
        // Its name is free again.
        client.delete_vm("a").await?;
        client.create_vm(spinning("a")?).await?;
        check_eq!(
            client.get_vm("a").await?.state(),
            VmState::Running,
            "state of the next VM of this name"
        );
        check_eq!(server.vm_processes()?.len(), 2, "processes of VMs");
        check_eq!(server.stop()?, Some(0), "exit code of the server");
        pass()
    })
}

fn server_killed(cx: &Context) -> TestResult {
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        for name in ["a", "b"] {
            client.create_vm(spinning(name)?).await?;
        }
        let processes = server.vm_processes()?;
        check_eq!(processes.len(), 2, "processes of VMs");
        server.process().signal(libc::SIGKILL)?;
        // They notice it by their sockets: soon, but not at once.
        while processes.iter().any(|process| process.exists()) {
            tokio::task::yield_now().await;
        }
        pass()
    })
}

fn unprivileged(cx: &Context) -> TestResult {
    let device = fs::metadata(KVM).map_err(Failure::io("look at the KVM device"))?;
    let group = 0o060;
    if device.mode() & group != group {
        let open = Permissions::from_mode(device.mode() | group);
        fs::set_permissions(KVM, open).map_err(Failure::io("open the KVM device to its group"))?;
    }
    cx.block_on(async {
        let program = std::env::temp_dir().join("vmprobed-of-nobody");
        fs::copy(cx.program("vmprobed"), &program).map_err(Failure::io("copy the server"))?;
        let server = Server::start_program(&program, |command| {
            command.uid(NOBODY).gid(device.gid());
        })?;
        let client = server.client().await?;
        let request = CreateVmRequest {
            hold: true,
            ..request("a", &power_off_image()?)?
        };
        client.create_vm(request).await?;
        let process = server.vm_process("a")?;
        for field in ["Uid", "CapEff", "CapPrm"] {
            for (name, status) in process.threads()? {
                let value = crate::process::value(&status, field).unwrap_or_default();
                let is_nobody = value.split_whitespace().all(|id| match field {
                    "Uid" => id == NOBODY.to_string(),
                    _ => id.bytes().all(|digit| digit == b'0'),
                });
                check!(is_nobody, "{field} of the thread {name}: {value}");
            }
        }
        client.start_vm("a").await?;
        let ending = client.wait_vm("a").await?;
        check_eq!(ending.kind(), EndingKind::PowerOff, "{}", ending.detail);
        pass()
    })
}
