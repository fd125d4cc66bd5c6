//! The capabilities of a thread (capabilities(7)).

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The capabilities by which the file system of a share acts for the guest's users, if this process is root's.
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// Drops the calling thread's capabilities. If `files` is true, it keeps those of files, as far as it has them.
///
/// # Errors
/// The system refuses it.
pub(super) fn drop_all_but(files: bool) -> io::Result<()> {
    let kept = match files {
        true => capabilities(None)?.permitted & OF_FILES,
        false => CapabilitySet::empty(),
    };
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?)
}
