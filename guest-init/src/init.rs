//! The root's own PID 1.

use std::{env, os::unix::process::CommandExt, process::Command};

use thiserror::Error;

/// The root's program can't take over.
#[derive(Debug, Error)]
#[error(
    "can't run {program} of the guest's root (is there a system on it? --init=PROGRAM names another program)"
)]
pub struct InitError {
    program: String,
    source: std::io::Error,
}

/// Has a program take the place of this process. It gets what the kernel gave this one: words of the command line that
/// aren't the kernel's own, as arguments or as variables of the environment
/// (Documentation/admin-guide/kernel-parameters.rst). Returns only if that fails.
pub fn become_init(program: &str) -> InitError {
    let source = Command::new(program).args(env::args_os().skip(1)).exec();
    let program = program.to_owned();
    InitError { program, source }
}
