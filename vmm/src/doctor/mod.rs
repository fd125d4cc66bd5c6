//! What this KVM does.
