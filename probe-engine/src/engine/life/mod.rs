//! What the kernel does to its own text while probes are in it: it frees init text, loads modules, shows code.

pub(crate) mod last_tables;
pub(crate) mod milestones;
pub(crate) mod oops;
pub(crate) mod page_tables;
