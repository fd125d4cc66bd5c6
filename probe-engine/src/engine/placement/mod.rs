//! From a place that a client asks for to an instruction: in which body of code it is, whether it can be probed, and
//! how it is executed then.

pub(crate) mod body;
pub(crate) mod exit_scan;
pub(crate) mod loaded;
pub(crate) mod locate;
pub(crate) mod shared_ways;
pub(crate) mod target;
pub(crate) mod walk;
pub(crate) mod way;
