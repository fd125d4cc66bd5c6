//! What PID 1 of the lab machine is told to do: a JSON file in its initramfs.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where the commands leave the bytes of their results: each appends to the file. They find the path in the environment
/// variable `VMPROBE_RESULTS`.
pub const RESULTS_PATH: &str = "/results";

/// A kernel module to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Its file in the lab machine.
    pub path: String,
    /// Its parameters, as on modprobe's command line: `name=value`, with blanks between.
    pub parameters: String,
}

/// One task: modules to load, then commands to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Kernel modules in the order to load them.
    pub modules: Vec<Module>,
    /// What to run, one after the other: each a program, as a path in the lab machine, and its arguments.
    pub commands: Vec<Vec<String>>,
    /// Environment variables of the commands; they get no others but `PATH`, `HOME` and
    /// `VMPROBE_RESULTS`.
    pub env: Vec<(String, String)>,
}

/// A task file that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The file is missing or unreadable.
    #[error("can't read the task file {0}")]
    Read(String, #[source] std::io::Error),
    /// The file isn't a task.
    #[error("the task file {0} isn't a task")]
    Parse(String, #[source] serde_json::Error),
}

impl Task {
    /// Where the task is in the lab machine's initramfs.
    pub const PATH: &str = "/lab/task.json";

    /// The task as the file's bytes.
    ///
    /// # Errors
    /// None that these types can cause; serialization is fallible by its signature only.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec_pretty(self)
    }

    /// Reads the task from a file.
    ///
    /// # Errors
    /// If the file can't be read or isn't a task.
    pub fn read(path: &Path) -> Result<Self, TaskError> {
        let name = || path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| TaskError::Read(name(), e))?;
        serde_json::from_slice(&bytes).map_err(|e| TaskError::Parse(name(), e))
    }
}
