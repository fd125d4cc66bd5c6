//! Tests with Linux guests, through the product's own server and client over TCP.

mod after;
pub mod bench;
pub mod bench_jumps;
mod boot;
mod boot_option;
mod code;
mod decoder;
mod documented;
mod draw;
mod early;
mod endings;
mod flags;
mod freed;
mod functions;
pub mod guest;
mod guest_tools;
mod instructions;
mod interleaved;
mod judge;
mod jumps;
mod jumps_batch;
mod jumps_causes;
mod jumps_instructions;
mod jumps_kinds;
mod jumps_parked;
mod jumps_records;
mod jumps_scribble;
mod jumps_smp;
mod jumps_tools;
mod jumps_whole;
mod kprobes;
mod labels;
mod list;
mod list_own;
mod mask;
mod missed;
mod modules;
mod no_jump;
mod offer;
mod offsets;
mod oops;
mod own_list;
mod patching;
mod pause;
mod phases;
mod probes;
mod refusals;
mod returns;
mod returns_own;
mod returns_patched;
mod returns_shared;
mod smp;
mod static_key;
mod steps;
mod switches;
mod switching;
mod text;
mod timeline;
mod tools;
mod vcpus;
mod verdict;
mod watch;
mod whole;

pub use guest::files;

use crate::test::Test;

/// The tests, table by table.
pub fn tables() -> impl Iterator<Item = &'static [Test]> {
    [
        boot::TESTS,
        vcpus::TESTS,
        endings::TESTS,
        pause::TESTS,
        early::TESTS,
        freed::TESTS,
        boot_option::TESTS,
        timeline::TESTS,
        probes::TESTS,
        refusals::TESTS,
        patching::TESTS,
        offsets::TESTS,
        switches::TESTS,
        switching::TESTS,
        list::TESTS,
        list_own::TESTS,
        after::TESTS,
        flags::TESTS,
        returns::TESTS,
        returns_own::TESTS,
        returns_patched::TESTS,
        returns_shared::TESTS,
        missed::TESTS,
        tools::TESTS,
        guest_tools::TESTS,
        static_key::TESTS,
        smp::TESTS,
        interleaved::TESTS,
        watch::TESTS,
        modules::TESTS,
        jumps::TESTS,
        jumps_causes::TESTS,
        jumps_records::TESTS,
        jumps_batch::TESTS,
        jumps_smp::TESTS,
        jumps_parked::TESTS,
        jumps_scribble::TESTS,
        jumps_kinds::TESTS,
        jumps_tools::TESTS,
        oops::TESTS,
        jumps_whole::TESTS,
        jumps_instructions::TESTS,
        kprobes::TESTS,
        whole::TESTS,
    ]
    .into_iter()
}
