//! Where probes are: the probes, the instructions that they are on, and the table of these that traps look at.

pub(crate) mod additions;
pub(crate) mod departed;
pub(crate) mod first_look;
pub(crate) mod foresight;
pub(crate) mod guest_kprobes;
pub(crate) mod hit_counters;
pub(crate) mod jump;
mod plain_map;
pub(crate) mod plain_site;
pub(crate) mod prefetched;
pub(crate) mod probe;
pub(crate) mod site;
pub(crate) mod site_map;
pub(crate) mod switches;
pub(crate) mod table;
pub(crate) mod text_read;
pub(crate) mod ways_out;
pub(crate) mod wishes;
