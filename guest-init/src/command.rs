//! The command, its input and its output.

use std::{
    io,
    net::Shutdown,
    os::unix::process::CommandExt,
    process::{self, Stdio},
    thread::{self, JoinHandle},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use vmprobe_init::{Command, Told};
use vsock::VsockStream;

/// A command that has been started.
pub struct Running {
    process: Pid,
    output: Vec<JoinHandle<()>>,
}

/// Starts a command, with each of its streams connected to the host.
///
/// Streams go through pipes: programs open `/dev/stdout`, and that can't be done with a socket.
pub fn start(
    command: &Command,
    input: VsockStream,
    output: VsockStream,
    errors: VsockStream,
) -> io::Result<Running> {
    let (program, arguments) = command
        .words
        .split_first()
        .ok_or_else(|| io::Error::other("there is no command"))?;
    let mut child = process::Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(&command.environment)
        .current_dir(&command.folder)
        .uid(command.user)
        .gid(command.group)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("can't run {program}: {error}")))?;
    if let Some(mut to) = child.stdin.take() {
        // The thread ends with the host's input, or when the command reads no more.
        thread::spawn(move || io::copy(&mut &input, &mut to));
    }
    let mut threads = Vec::new();
    if let Some(from) = child.stdout.take() {
        threads.push(thread::spawn(move || copy_out(from, &output)));
    }
    if let Some(from) = child.stderr.take() {
        threads.push(thread::spawn(move || copy_out(from, &errors)));
    }
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(Running {
        process: process.ok_or_else(|| io::Error::other("the command has no number"))?,
        output: threads,
    })
}

fn copy_out(mut from: impl io::Read, mut to: &VsockStream) {
    // A host that reads no more is told nothing more; the command then gets an error of its own.
    let _ended = io::copy(&mut from, &mut to);
    let _the_host_may_be_gone = to.shutdown(Shutdown::Write);
}

impl Running {
    /// Waits for the command's end and for all of its output. Reaps the orphans of other processes
    /// meanwhile.
    pub fn end(self) -> io::Result<Told> {
        let told = loop {
            let Some((process, status)) = wait(WaitOptions::empty())? else {
                continue;
            };
            if process != self.process {
                continue;
            }
            if let Some(code) = status.exit_status() {
                let code = u8::try_from(code).unwrap_or(u8::MAX);
                break Told::Exited { code };
            }
            if let Some(signal) = status.terminating_signal() {
                break Told::Killed { signal };
            }
        };
        // Other processes may still hold the pipes open. For PID 1, -1 stands for all of them.
        if let Some(everybody) = Pid::from_raw(-1) {
            let _there_may_be_nobody = kill_process(everybody, Signal::KILL);
        }
        for thread in self.output {
            let _a_panic_of_a_copy = thread.join();
        }
        Ok(told)
    }
}
