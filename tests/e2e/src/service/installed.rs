//! The programs as an installation uses them: a configuration, the service manager, completions.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, wrong};

pub const CONFIGURED: Test = Test {
    name: "a_server_keeps_to_its_configuration_and_tells_the_service_manager_of_its_start_and_end",
    ids: &["SV09"],
    needs: Needs::None,
    run: configured,
};

pub const COMPLETED: Test = Test {
    name: "shells_complete_the_commands_of_both_programs",
    ids: &["SV08"],
    needs: Needs::None,
    run: completed,
};

/// Longest wait for a message. This only ends a hanging test: no test waits for time.
const LIMIT: Duration = Duration::from_secs(120);

fn configured(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let (file, manager) = (folder.path().join("c.toml"), folder.path().join("manager"));
    fs::write(&file, "socket-mode = \"640\"\n").map_err(Failure::io("write a configuration"))?;
    let socket = UnixDatagram::bind(&manager).map_err(Failure::io("listen"))?;
    let limited = socket.set_read_timeout(Some(LIMIT));
    limited.map_err(Failure::io("limit the wait"))?;
    let server = Server::start_with(cx, |command| {
        command.arg("--config").arg(&file);
        command
            .env("NOTIFY_SOCKET", &manager)
            .env_remove("WATCHDOG_USEC");
    })?;
    check_eq!(told(&socket)?, "READY=1", "what is told of the start");
    cx.block_on(async {
        server.client().await?.list_vms().await?;
        pass()
    })?;
    let path = server.endpoint.trim_start_matches("unix:");
    let found = fs::metadata(path).map_err(Failure::io("look at the socket"))?;
    check_eq!(
        found.permissions().mode() & 0o777,
        0o640,
        "the socket's mode"
    );
    check_eq!(server.stop()?, Some(0), "the server's exit code");
    check_eq!(told(&socket)?, "STOPPING=1", "what is told of the end");
    pass()
}

/// Returns the next message to the service manager.
fn told(socket: &UnixDatagram) -> Result<String, Failure> {
    let mut message = [0; 256];
    loop {
        match socket.recv(&mut message) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(wrong!("nothing is told: {error}")),
            Ok(length) => {
                let text = String::from_utf8_lossy(message.get(..length).unwrap_or_default());
                return Ok(text.trim().to_owned());
            }
        }
    }
}

fn completed(cx: &Context) -> TestResult {
    for (program, command) in [("vmprobe", "boot-timeline"), ("vmprobed", "doctor")] {
        for shell in ["bash", "zsh", "fish"] {
            let mut completions = Command::new(cx.program(program));
            let output = completions.args(["completions", shell]).output();
            let output = output.map_err(Failure::io("run a program"))?;
            let script = String::from_utf8_lossy(&output.stdout);
            check!(script.contains(command), "{program} for {shell}: {script}");
        }
    }
    pass()
}
