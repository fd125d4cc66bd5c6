//! Events that are exported to other systems. The tests use the real ones.

mod bus;
mod command;
mod guest;
mod nats;
mod one_way;
mod parquet;
mod python;

use crate::test::Test;

pub const TESTS: &[Test] = &[
    bus::RESTARTED,
    bus::FORGOTTEN,
    bus::AWAY,
    bus::SECURED,
    parquet::READ,
    parquet::FULL,
];
