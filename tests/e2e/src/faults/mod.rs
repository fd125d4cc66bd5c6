//! Faults in the middle of work: a guest, a process of a VM, a client or the server ends under load or in the middle of
//! a batch, or memory or the disk runs out. Nothing is lost uncounted, text is whole, and the rest goes on.

mod batch;
mod disk;
mod load;
mod memory;
mod stalled;
mod terminated;

use crate::test::Test;

/// The tests.
pub const TESTS: &[Test] = &[
    terminated::TERMINATED,
    terminated::KILLED,
    stalled::STALLED,
    batch::GUEST,
    batch::PROCESS,
    batch::CLIENT,
    memory::BATCH,
    memory::START,
    disk::IMAGES,
    disk::OUTPUT,
];
