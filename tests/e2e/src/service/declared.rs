//! VMs that a server's owner declares in a file.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use vmprobe_client::Client;
use vmprobe_client::v1::VmState;

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass};
use crate::tiny::sessions::kernel;

pub const COME_BACK: Test = Test {
    name: "declared_vms_come_back_with_their_probes_when_their_server_was_killed",
    ids: &["SV07"],
    needs: Needs::Tiny,
    run: come_back,
};

/// Waits until the VM runs and its probe is hit.
async fn is_probed(client: &Client) -> Result<(), Failure> {
    loop {
        let vms = client.list_vms().await?;
        let running = vms.iter().filter(|vm| vm.state() == VmState::Running);
        if running.count() == 1 {
            let probes = client.list_probes("web").await?;
            if probes
                .iter()
                .any(|probe| probe.name == "pass" && probe.hits > 0)
            {
                check_eq!(probes.len(), 1, "probes");
                return Ok(());
            }
        }
    }
}

fn come_back(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    let (image, file) = (folder.join("kernel"), folder.join("vms.toml"));
    fs::write(&image, kernel()?).map_err(Failure::io("write a kernel"))?;
    let declared = format!(
        "[[vm]]\nname = \"web\"\nkernel = \"{}\"\nmemory_mib = 64\nprobes = [\"p:pass body\"]\n\n\
         [[vm]]\nname = \"broken\"\nkernel = \"/nowhere/kernel\"\n",
        image.display()
    );
    fs::write(&file, declared).map_err(Failure::io("write a file"))?;
    cx.block_on(async {
        let server = server(cx, folder, &file)?;
        is_probed(&server.client().await?).await?;
        server.process().signal(libc::SIGKILL)?;
        drop(server);
        let server = self::server(cx, folder, &file)?;
        let client = server.client().await?;
        is_probed(&client).await?;
        // It is reported, and doesn't affect the others.
        let expected = "can't be made as declared";
        while !log(folder)?.contains(expected) {}
        check!(log(folder)?.contains("broken"), "{}", log(folder)?);
        check_eq!(client.list_vms().await?.len(), 1, "VMs");
        check_eq!(server.stop()?, Some(0), "exit code");
        pass()
    })?;

    fs::write(&file, "[[vm]]\nname = \"web\"\nkernal = \"k\"\n").map_err(Failure::io("write"))?;
    let mut check = Command::new(cx.program("vmprobed"));
    check.arg("--vms").arg(&file).arg("--check-config");
    let output = check.stdin(Stdio::null()).output();
    let output = output.map_err(Failure::io("run vmprobed"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    check_eq!(output.status.code(), Some(2), "exit code: {errors}");
    check!(
        errors.contains("VM `web`") && errors.contains("kernal"),
        "{errors}"
    );
    pass()
}

fn server(cx: &Context, folder: &Path, declared: &Path) -> Result<Server, Failure> {
    let log = File::create(folder.join("log")).map_err(Failure::io("make a file for the log"))?;
    Server::start_with(cx, |command| {
        command.arg("--vms").arg(declared).stderr(log);
    })
}

fn log(folder: &Path) -> Result<String, Failure> {
    fs::read_to_string(folder.join("log")).map_err(Failure::io("read the log"))
}
