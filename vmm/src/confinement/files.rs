//! The files that threads reach, by landlock (Documentation/userspace-api/landlock.rst).

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use rustix::thread::set_no_new_privs;

use super::error::ConfinementError;

/// What is restricted, as far as the host's kernel can: all of Linux 6.15.
const RESTRICTED: ABI = ABI::V7;

/// What a VM reaches of the host's files once it runs, beside those that are open. A path that isn't there gives
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Folders that the guest reads.
    pub read: Vec<PathBuf>,
    /// Folders that the guest changes.
    pub write: Vec<PathBuf>,
    /// Folders with the guest's socket, which is removed at its end.
    pub sockets: Vec<PathBuf>,
}

impl Access {
    /// Returns true if there are folders that the guest sees.
    pub(super) fn has_folders(&self) -> bool {
        !self.read.is_empty() || !self.write.is_empty()
    }

    fn rights(&self) -> [(&Vec<PathBuf>, BitFlags<AccessFs>); 3] {
        [
            (&self.read, AccessFs::from_read(RESTRICTED)),
            (&self.write, AccessFs::from_all(RESTRICTED)),
            (&self.sockets, AccessFs::RemoveFile.into()),
        ]
    }
}

/// Rules for threads, as the kernel has them. None: it has no landlock.
pub(super) struct FileRules(Option<OwnedFd>);

impl FileRules {
    /// Makes rules that allow no files but those of `access`, no TCP, and no abstract Unix sockets (whose names are in
    /// no folder).
    ///
    /// # Errors
    /// The host's kernel refuses.
    pub(super) fn new(access: &Access) -> Result<Self, ConfinementError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(RESTRICTED))?
            .handle_access(AccessNet::from_all(RESTRICTED))?
            // Signals aren't restricted: kernels before 6.15 take threads of one process for different domains.
            .scope(Scope::AbstractUnixSocket)?
            .create()?;
        for (paths, rights) in access.rights() {
            for folder in paths.iter().filter_map(|path| PathFd::new(path).ok()) {
                rules = rules.add_rule(PathBeneath::new(folder, rights))?;
            }
        }
        let rules = Self(rules.into());
        if rules.0.is_none() {
            tracing::warn!(
                "the kernel of this host has no landlock (Linux 5.13, `landlock` among the kernel's `lsm=`): a VM's \
                 process is kept from files by its user's rights alone"
            );
        }
        Ok(rules)
    }

    /// Applies the rules to the calling thread, and those that it starts, for good, as far as the host's kernel can.
    ///
    /// # Errors
    /// The host's kernel refuses.
    pub(super) fn enforce(&self) -> Result<(), ConfinementError> {
        // Otherwise the kernel takes neither rules nor filters of a process without privileges.
        set_no_new_privs(true).map_err(|error| ConfinementError::Privileges(error.into()))?;
        let Some(rules) = &self.0 else {
            return Ok(());
        };
        // The crate's own call wants a copy of the rules, a file, for each thread: one that starts when the process has
        // no file left would end unconfined.
        // SAFETY: the call reads two numbers; `rules` is open as long as it.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) } {
            0 => Ok(()),
            _ => Err(ConfinementError::Landlock(io::Error::last_os_error())),
        }
    }
}
