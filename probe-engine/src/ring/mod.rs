//! Rings: how records get from the guest to the host without an exit.
//!
//! Each vCPU has a ring of its own, and only code that runs on that vCPU reserves space in it.

pub mod layout;
