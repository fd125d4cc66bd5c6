//! Running programs, never for longer than a limit.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// Why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It can't be started.
    #[error("can't start {0}")]
    Start(String, #[source] io::Error),
    /// It can't be waited for.
    #[error("can't wait for {0}")]
    Wait(String, #[source] io::Error),
    /// The limit passed; it was killed with all that it had started.
    #[error("{0} did not end within {1} s and was killed")]
    Limit(String, u64),
}

/// Runs a program without input and gives each line of its standard output to `line`.
///
/// # Errors
/// See [`CommandError`]. A program that fails is no error here.
pub fn run(
    command: &mut Command,
    limit: Duration,
    mut line: impl FnMut(&str) + Send + 'static,
) -> Result<ExitStatus, CommandError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let started = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|e| CommandError::Start(name.clone(), e))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (told, ended) = mpsc::channel();
    let output = child.stdout.take();
    let reader = thread::spawn(move || {
        for text in output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines())
        {
            match text {
                Ok(text) => line(&text),
                // A line that isn't text; the next one may be.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => break,
            }
        }
    });
    thread::spawn(move || {
        // The receiver waits until this is sent.
        let _ = told.send(wait(child));
    });
    let in_time = ended.recv_timeout(limit);
    if in_time.is_err()
        && let Some(group) = group
    {
        // The process group may just have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
    // All writers of the pipe are gone now, so the reader comes to its end.
    let _a_panic_of_line_is_its_own_news = reader.join();
    match in_time {
        Ok(status) => status.map_err(|e| CommandError::Wait(name, e)),
        Err(_) => Err(CommandError::Limit(name, limit.as_secs())),
    }
}

fn wait(mut child: Child) -> io::Result<ExitStatus> {
    child.wait()
}
