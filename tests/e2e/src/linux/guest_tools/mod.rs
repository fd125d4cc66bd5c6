//! The guest's own tools and our probes at the same places, in every order of coming, changing and
//! going.
//!
//! A [`Case`](cases::Case) is one of the guest's tools, one of our probes, and one order in which the steps of both are
//! done: each comes, is switched off and on again, and goes. After each step the guest calls the function on all CPUs
//! at once; each must have counted all calls made while it was there. In the end the text is what it was, and the
//! kernel's log has nothing to complain about.

mod cases;
mod drive;
mod ours;
mod theirs;

use super::guest::files;
use crate::context::Context;
use crate::test::{Needs, Test, TestResult};

use theirs::Group;

pub const TESTS: &[Test] = &[
    Test {
        name: "the_guest_s_function_tracers_and_our_probes_in_every_order_on_6_1",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_1, Group::Tracers),
    },
    Test {
        name: "the_guest_s_function_tracers_and_our_probes_in_every_order_on_6_12",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_12, Group::Tracers),
    },
    Test {
        name: "the_guest_s_kprobes_and_our_probes_in_every_order_on_6_1",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_1, Group::Kprobes),
    },
    Test {
        name: "the_guest_s_kprobes_and_our_probes_in_every_order_on_6_12",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_12, Group::Kprobes),
    },
    Test {
        name: "the_guest_s_return_probes_and_our_probes_in_every_order_on_6_1",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_1, Group::Returns),
    },
    Test {
        name: "the_guest_s_return_probes_and_our_probes_in_every_order_on_6_12",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_12, Group::Returns),
    },
    Test {
        name: "the_guest_s_bpf_programs_and_our_probes_in_every_order_on_6_1",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_1, Group::Bpf),
    },
    Test {
        name: "the_guest_s_bpf_programs_and_our_probes_in_every_order_on_6_12",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_12, Group::Bpf),
    },
    Test {
        name: "the_guest_s_patches_of_its_own_text_and_our_probes_in_every_order_on_6_1",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_1, Group::Patches),
    },
    Test {
        name: "the_guest_s_patches_of_its_own_text_and_our_probes_in_every_order_on_6_12",
        ids: &["KP22"],
        needs: Needs::Linux,
        run: |cx| run(cx, files::BZIMAGE_6_12, Group::Patches),
    },
];

fn run(cx: &Context, kernel: &'static str, group: Group) -> TestResult {
    cx.block_on(drive::group(cx, kernel, group))
}
