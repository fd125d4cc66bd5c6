//! Running the task's commands as children of PID 1.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;

use lab_init::{Exit, Frame, MAX_PAYLOAD, RESULTS_PATH, Task};

use crate::port::Port;

/// Why the command gave no exit status.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The task names no program.
    #[error("the task has no command, or an empty one")]
    Empty,
    /// The program can't be started.
    #[error("can't start {0} in the lab (it must be in the lab's files and statically linked)")]
    Start(String, #[source] io::Error),
    /// A pipe, wait or the report port failed.
    #[error("can't follow the command")]
    Follow(#[from] io::Error),
}

/// Runs the task's commands, also those after one that fails. Returns how the first that failed has ended, or how the
/// last has ended if none failed.
pub fn run_all(task: &Task, port: &Port) -> Result<Exit, CommandError> {
    let mut ended: Option<Exit> = None;
    for command in &task.commands {
        let exit = run(command, &task.env, port)?;
        ended = ended.filter(|before| !before.success()).or(Some(exit));
    }
    ended.ok_or(CommandError::Empty)
}

/// Runs a command to its end and sends its output as it comes. Processes that it leaves running are killed, so that the
/// output ends with it.
fn run(command: &[String], env: &[(String, String)], port: &Port) -> Result<Exit, CommandError> {
    let (program, arguments) = command.split_first().ok_or(CommandError::Empty)?;
    let (mut output, writer) = io::pipe()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/bin")
        .env("HOME", "/tmp")
        .env("VMPROBE_RESULTS", RESULTS_PATH)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let child = command
        .spawn()
        .map_err(|e| CommandError::Start(program.clone(), e))?;
    // The command holds the pipe's writing end. Without it, the pipe ends when its last user ends.
    drop(command);

    thread::scope(|scope| {
        let forward = scope.spawn(move || -> io::Result<()> {
            let mut buffer = vec![0; MAX_PAYLOAD];
            loop {
                match output.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => port.send(&Frame::Output(buffer[..n].to_vec()))?,
                }
            }
        });
        let exit = wait_for(child.id())?;
        kill_the_rest()?;
        forward
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the output thread panicked")))?;
        Ok(exit)
    })
}

/// Reaps children, orphans too, until the one with this id has ended.
fn wait_for(id: u32) -> io::Result<Exit> {
    loop {
        let (pid, status) = wait()?;
        if u32::try_from(pid) != Ok(id) {
            continue;
        }
        if libc::WIFEXITED(status) {
            return Ok(Exit::Code(libc::WEXITSTATUS(status)));
        }
        if libc::WIFSIGNALED(status) {
            return Ok(Exit::Signal(libc::WTERMSIG(status)));
        }
    }
}

fn kill_the_rest() -> io::Result<()> {
    // SAFETY: no memory is involved. -1 spares the caller and PID 1, which are the same here.
    // It fails only where there is nobody left to kill.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    loop {
        match wait() {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn wait() -> io::Result<(libc::pid_t, libc::c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` lives for the call.
        let pid = unsafe { libc::waitpid(-1, &mut status, 0) };
        if pid >= 0 {
            return Ok((pid, status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
