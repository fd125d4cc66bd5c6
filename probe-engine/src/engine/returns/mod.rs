//! Calls that return probes follow, by breakpoints and by detours, and the tasks that make them.

pub(crate) mod ended;
pub(crate) mod exits;
pub(crate) mod follow;
pub(crate) mod follower;
pub(crate) mod own_returns;
pub(crate) mod replaced;
pub(crate) mod stack;
pub(crate) mod standing;
pub(crate) mod tasks;
pub(crate) mod trampoline;
pub(crate) mod under_way;
