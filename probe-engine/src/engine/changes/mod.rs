//! Changes of probes: registering, removing, switching, and the transaction that they all are.

pub(crate) mod change;
pub(crate) mod registration;
pub(crate) mod registry;
