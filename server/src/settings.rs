//! What the owner of a server has decided.

use std::path::PathBuf;

use crate::files::Folders;
use crate::limits::Limits;
use crate::log::{LogOptions, Records};

/// What holds for all VMs of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What clients can ask for at most.
    pub limits: Limits,
    /// Whether probes and clients may change the guest: set registers, skip functions, write memory.
    pub changes: bool,
    /// Whether the threads of VMs have filters of system calls.
    pub seccomp: bool,
    /// The folders below which clients may name files. None of them: the server's own user may name any file, and
    /// nobody else one.
    pub files: Folders,
    /// The folder where images are kept. None: clients can hand none over.
    pub images: Option<PathBuf>,
    /// The folder where kernels that were unpacked are kept for the next VM. None: nowhere.
    pub kernel_cache: Option<PathBuf>,
    /// What the processes of VMs log.
    pub log: LogOptions,
    /// Where copies of that go.
    pub records: Option<Records>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            changes: false,
            seccomp: true,
            files: Folders::default(),
            images: None,
            kernel_cache: None,
            log: LogOptions::default(),
            records: None,
        }
    }
}
