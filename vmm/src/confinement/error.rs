//! Why a process can't be confined.

use std::io;

use thiserror::Error;

/// Why a process can't be confined.
#[derive(Debug, Error)]
pub enum ConfinementError {
    /// A filter of ours is wrong: a bug.
    #[error("the filter of system calls of a thread is wrong: {0}")]
    Filter(seccompiler::BackendError),
    /// The host's kernel takes no filter.
    #[error(
        "this host's kernel takes no filter of system calls ({0}): build it with CONFIG_SECCOMP_FILTER, or start \
         vmprobed with --no-seccomp"
    )]
    Seccomp(seccompiler::Error),
    /// The host's kernel refuses the rules about files.
    #[error("this host's kernel takes no rules about files, though it knows landlock: {0}")]
    Rules(#[from] landlock::RulesetError),
    /// The host's kernel refuses to restrict files.
    #[error(
        "this host's kernel doesn't restrict the files of a thread, though it knows landlock: {0}"
    )]
    Landlock(io::Error),
    /// A thread may gain privileges.
    #[error("a thread can't give up that programs which it starts gain privileges: {0}")]
    Privileges(io::Error),
    /// Capabilities stay.
    #[error("the capabilities of a thread can't be dropped: {0}")]
    Capabilities(io::Error),
    /// There is no thread that starts others.
    #[error("the host has no thread to confine the process with: {0}")]
    Thread(io::Error),
}
