//! `vmprobe doctor`: the server's own, under this name.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::cli::Doctor;
use crate::failure::Failure;
use crate::server_process::program;

/// Becomes `vmprobed doctor`, so that its output and exit code are this command's; returns only when
/// that fails.
pub fn replace_this_process(doctor: &Doctor) -> Failure {
    let program = program();
    let mut command = Command::new(&program);
    command.arg("doctor");
    if doctor.format.is_json() {
        command.arg("--json");
    }
    let cause = command.exec();
    Failure::StartServer { program, cause }
}
