//! Tests with Linux guests, through the product's own server and client over TCP.

mod boot;
mod early;
mod endings;
pub mod guest;

pub use guest::files;
mod pause;
mod probes;
mod vcpus;

use crate::test::Test;

/// The tests, table by table.
pub fn tables() -> impl Iterator<Item = &'static [Test]> {
    [
        boot::TESTS,
        vcpus::TESTS,
        endings::TESTS,
        pause::TESTS,
        early::TESTS,
        probes::TESTS,
    ]
    .into_iter()
}
