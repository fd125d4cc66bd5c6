//! Code of ours in the guest: copies of instructions, and what an address there stands for.

pub(crate) mod arena;
pub(crate) mod original;
pub(crate) mod room;
