//! Code of ours in the guest: copies of instructions, and what an address there stands for.

pub(crate) mod copies;
pub(crate) mod original;
