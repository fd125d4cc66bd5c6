//! The root's own PID 1.

use std::{
    env,
    fs::File,
    io,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use rustix::fs::{Mode, OFlags, open};
use thiserror::Error;

/// The kernel's console.
const CONSOLE: &str = "/dev/console";

/// The root's program can't take over.
#[derive(Debug, Error)]
#[error(
    "can't run {program} of the guest's root (is there a system on it? --init=PROGRAM names another program)"
)]
pub struct InitError {
    program: String,
    source: io::Error,
}

/// Replaces this process by a program, which gets what the kernel gave this one: words of the command line that aren't
/// the kernel's own, as arguments or as variables of the environment
/// (Documentation/admin-guide/kernel-parameters.rst). Returns only if that fails.
pub fn become_init(program: &str) -> InitError {
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1));
    // When this process began, the console's driver may have been a module that was not loaded.
    if let Ok([input, output, errors]) = console() {
        command.stdin(input).stdout(output).stderr(errors);
    }
    let source = command.exec();
    let program = program.to_owned();
    InitError { program, source }
}

/// The console, once for each stream.
fn console() -> io::Result<[Stdio; 3]> {
    let console = open(CONSOLE, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
    let console = File::from(console);
    let again = || console.try_clone().map(Stdio::from);
    Ok([again()?, again()?, again()?])
}
