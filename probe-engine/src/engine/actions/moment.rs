//! When an action is done.

/// Where in its function a vCPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// About to execute the probed instruction.
    Before,
    /// About to be in the caller again.
    Returned,
    /// About to jump to another function, which will return to the caller.
    TailCall,
    /// Behind an access to watched data.
    Accessed,
}
