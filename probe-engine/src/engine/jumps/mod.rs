//! Jumps in the place of breakpoints: when a probe becomes one, and what the rings tell of its hits.

pub(crate) mod commit;
pub(crate) mod credit;
pub(crate) mod known_detour;
pub(crate) mod module_text;
pub(crate) mod optimizer;
pub(crate) mod outstanding;
pub(crate) mod prepared;
pub(crate) mod reader;
pub(crate) mod rings;
pub(crate) mod whole_text;
