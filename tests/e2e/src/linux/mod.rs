//! Tests with Linux guests, through the product's own server and client over TCP.

mod actions;
mod after;
pub mod bench;
mod boot;
mod boot_option;
mod ci;
mod ci_net;
mod clock;
mod code;
mod confinement;
mod debugger;
mod decision;
mod decoder;
mod devices;
mod documented;
mod draw;
mod early;
mod endings;
mod flags;
mod freed;
mod functions;
mod given;
pub mod guest;
mod guest_tools;
mod images;
mod instructions;
mod interleaved;
mod judge;
mod jumps;
mod kept;
mod kprobes;
mod labels;
mod list;
mod mask;
mod missed;
mod modules;
mod moved;
mod net;
mod no_jump;
mod offer;
mod offsets;
mod oops;
mod own_list;
mod package;
mod passt;
mod patching;
mod pause;
mod phases;
mod placed;
mod probes;
mod refusals;
mod returns;
mod root;
mod shares;
mod smp;
mod static_key;
mod steps;
mod streams;
mod switches;
mod switching;
mod system;
mod text;
mod timeline;
mod tools;
mod tracer;
mod vcpus;
mod virtio_console;
mod vsock;
mod watch;
mod whole;

pub use guest::files;
pub use kept::KeptGuests;

use crate::test::Test;

/// The tests, table by table.
pub fn tables() -> impl Iterator<Item = &'static [Test]> {
    [
        boot::TESTS,
        moved::TESTS,
        given::TESTS,
        placed::TESTS,
        ci::TESTS,
        ci_net::TESTS,
        images::TESTS,
        vcpus::TESTS,
        endings::TESTS,
        pause::TESTS,
        early::TESTS,
        freed::TESTS,
        boot_option::TESTS,
        timeline::TESTS,
        clock::TESTS,
        tracer::TESTS,
        tracer::filters::TESTS,
        tracer::by_value::TESTS,
        tracer::large::TESTS,
        tracer::modules::TESTS,
        tracer::stacks::TESTS,
        tracer::stacks_copied::TESTS,
        tracer::stacks_followed::TESTS,
        tracer::pointers::TESTS,
        tracer::selftests::TESTS,
        tracer::verdicts::TESTS,
        probes::TESTS,
        refusals::TESTS,
        patching::TESTS,
        offsets::TESTS,
        switches::TESTS,
        switching::TESTS,
        list::TESTS,
        list::own::TESTS,
        after::TESTS,
        flags::TESTS,
        returns::TESTS,
        returns::own::TESTS,
        returns::patched::TESTS,
        returns::shared::TESTS,
        missed::TESTS,
        tools::TESTS,
        guest_tools::TESTS,
        static_key::TESTS,
        smp::TESTS,
        interleaved::TESTS,
        watch::TESTS,
        modules::TESTS,
        devices::TESTS,
        shares::TESTS,
        root::TESTS,
        system::TESTS,
        package::TESTS,
        virtio_console::TESTS,
        net::TESTS,
        passt::TESTS,
        vsock::TESTS,
        confinement::TESTS,
        debugger::TESTS,
        jumps::TESTS,
        jumps::causes::TESTS,
        jumps::records::TESTS,
        jumps::batch::TESTS,
        jumps::smp::TESTS,
        jumps::parked::TESTS,
        jumps::scribble::TESTS,
        jumps::kinds::TESTS,
        jumps::tools::TESTS,
        oops::TESTS,
        jumps::whole::TESTS,
        jumps::instructions::TESTS,
        actions::TESTS,
        kprobes::TESTS,
        whole::TESTS,
    ]
    .into_iter()
}
