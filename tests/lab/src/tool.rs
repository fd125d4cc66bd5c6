//! Running the machine's own programs (apt-get, dpkg-deb, cargo, the build script).

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Why a program gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It can't be started.
    #[error("can't start {0} (run deploy/setup.sh, which installs what the lab needs)")]
    Start(String, #[source] io::Error),
    /// It failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// The program's name.
        program: String,
        /// Its exit status, and the end of what it wrote.
        output: String,
    },
    /// Its log can't be written.
    #[error("can't write the log {}", .0.display())]
    Log(PathBuf, #[source] io::Error),
}

/// Lines of a failed program's output to show.
const TAIL: usize = 15;

/// Runs a program without input and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, ToolError> {
    let name = name(command);
    let result = command.stdin(Stdio::null()).output();
    let Output {
        status,
        stdout,
        stderr,
    } = result.map_err(|e| ToolError::Start(name.clone(), e))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    // Errors and warnings go to standard error; standard output matters less.
    let output = if stderr.is_empty() { stdout } else { stderr };
    Err(ToolError::Failed {
        program: name,
        output: format!("{status}:\n{}", tail(&String::from_utf8_lossy(&output))),
    })
}

/// Runs a program with all its output in a file.
pub(crate) fn run_logged(command: &mut Command, log: &std::path::Path) -> Result<(), ToolError> {
    let log_error = |e| ToolError::Log(log.to_owned(), e);
    let file = std::fs::File::create(log).map_err(log_error)?;
    let name = name(command);
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(log_error)?)
        .stderr(file)
        .status()
        .map_err(|e| ToolError::Start(name.clone(), e))?;
    if status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&std::fs::read(log).map_err(log_error)?).into_owned();
    Err(ToolError::Failed {
        program: name,
        output: format!(
            "{status}; whole output: {}\n{}",
            log.display(),
            tail(&output)
        ),
    })
}

/// The last lines of a text.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
