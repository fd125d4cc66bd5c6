//! What is done to the guest at hits: by the probes' own actions, and by the answers of attendants.

pub(crate) mod apply;
pub(crate) mod attend;
pub(crate) mod attendants;
pub(crate) mod check;
pub(crate) mod moment;
pub(crate) mod read;
pub(crate) mod write;
