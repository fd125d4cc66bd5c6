//! Changes of probes: registering, removing, switching; the plan of one, and how it is committed.

pub(crate) mod change;
pub(crate) mod draft;
pub(crate) mod names;
pub(crate) mod patches;
pub(crate) mod plan;
pub(crate) mod register;
pub(crate) mod registration;
pub(crate) mod registry;
pub(crate) mod removal;
pub(crate) mod switching;
