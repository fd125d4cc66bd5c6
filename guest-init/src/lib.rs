//! What PID 1 of a guest is told to do, and what it tells its host.
//!
//! The guest's initramfs has the program `vmprobe-init`, the job as JSON, and the modules of the drivers that
//! it needs. A command's input, output and end go through virtio sockets, each to a port of the host's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where the job is in the initramfs.
pub const JOB: &str = "/job.json";
/// Where modules are in the initramfs, to be loaded in the order of their names.
pub const MODULES: &str = "/modules";
/// What each line begins with that the program writes to the kernel's console.
pub const PREFIX: &str = "vmprobe-init: ";

/// Ports of the host's that the guest connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// [`Told`] as lines of JSON. The guest ends when the host closes it.
    Control = 1,
    /// The command's standard input.
    Input = 2,
    /// Its standard output.
    Output = 3,
    /// Its standard error.
    Errors = 4,
}

impl Port {
    /// All of them, in the order in which the guest connects.
    pub const ALL: [Self; 4] = [Self::Control, Self::Input, Self::Output, Self::Errors];

    /// Its number.
    pub fn number(self) -> u32 {
        self as u32
    }
}

/// Where the guest's root file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// The share with this tag.
    Share(String),
    /// The first disk, or the first of its partitions that has a root file system.
    Disk,
}

/// Where the guest's changes of its root go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changes {
    /// Into a folder in the guest's memory, which is put over the root.
    Memory,
    /// Into the root itself.
    Root,
}

/// What a guest does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The root file system.
    pub root: Root,
    /// Where changes of it go.
    pub changes: Changes,
    /// Shares that are mounted below it: where, and their tags.
    pub mounts: BTreeMap<String, String>,
    /// What runs in it.
    pub task: Task,
}

/// What runs in the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One command. The guest ends with it.
    Command(Command),
    /// A program of the root's that takes the place of PID 1, such as `/sbin/init`. The guest ends when that ends it.
    Init(String),
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// A program, which is looked for in PATH, and its arguments.
    pub words: Vec<String>,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// The folder that it is started in.
    pub folder: String,
    /// The user and the group that it runs as.
    pub user: u32,
    /// As above.
    pub group: u32,
}

/// What the guest tells its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Told {
    /// The command runs.
    Started,
    /// It has ended by itself.
    Exited {
        /// Its exit code.
        code: u8,
    },
    /// A signal has ended it.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// It could not be started.
    Failed {
        /// Why.
        reason: String,
    },
}
