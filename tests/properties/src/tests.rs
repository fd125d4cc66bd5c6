use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{
    decode, definitions, devices, emulate, filters, kernel_log, relocate, rings, symbols, types,
};

/// Tries a target's corpus.
fn corpus(target: &str, property: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut tried = 0;
    for entry in std::fs::read_dir(folder.join(target)).unwrap() {
        property(&std::fs::read(entry.unwrap().path()).unwrap());
        tried += 1;
    }
    assert!(tried > 0, "no corpus for {target}");
}

#[test]
fn the_corpus_of_each_property_holds() {
    corpus("decode", decode);
    corpus("definitions", definitions);
    corpus("devices", devices);
    corpus("emulate", emulate);
    corpus("filters", filters);
    corpus("kernel_log", kernel_log);
    corpus("relocate", relocate);
    corpus("rings", rings);
    corpus("symbols", symbols);
    corpus("types", types);
}

/// Bytes that are often instructions: common opcodes and prefixes.
fn code() -> impl Strategy<Value = Vec<u8>> {
    const COMMON: &[u8] = &[
        0x0f, 0x48, 0x41, 0x66, 0xf3, 0x65, 0x89, 0x8b, 0x83, 0xff, 0x50, 0x55, 0xc3, 0xe8, 0x74,
        0x05, 0x24, 0x35, 0x8d, 0x90, 0xcc,
    ];
    let byte = prop_oneof![any::<u8>(), prop::sample::select(COMMON)];
    vec(byte, 15)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_text_can_be_probed_or_is_refused(start in vec(any::<u8>(), 11), text in vec(code(), 9)) {
        decode(&[start, text.concat()].concat());
    }

    #[test]
    fn any_instruction_is_emulated_whole_or_not_at_all(
        code in code(),
        state in vec(prop_oneof![Just(0_u8), any::<u8>()], 8 + 17 * 8),
    ) {
        emulate(&[code, state].concat());
    }

    #[test]
    fn any_instruction_is_relocated_there_and_back(code in code(), places in vec(any::<u8>(), 16)) {
        relocate(&[code, places].concat());
    }
}

/// Actions of a guest and the host on rings, without garbage: an action and its arguments.
fn decent() -> impl Strategy<Value = Vec<u8>> {
    let arguments = |(action, len): (u8, usize)| {
        // The upper half is the other vCPU; 135 is a multiple of the number of actions.
        let first = prop::sample::select(vec![action, action + 135]);
        (first, vec(any::<u8>(), len))
            .prop_map(|(first, arguments)| [vec![first], arguments].concat())
    };
    let actions = [(0, 9), (1, 9), (2, 1), (3, 0), (6, 1), (7, 3), (8, 2)];
    prop::sample::select(actions.to_vec()).prop_flat_map(arguments)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_rings_are_read_to_their_end(bytes in vec(any::<u8>(), 0..200)) {
        rings(&bytes);
    }

    #[test]
    fn records_arrive_once_and_in_order(actions in vec(decent(), 0..60)) {
        rings(&actions.concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_damaged_kernel_is_read_or_refused(choice in 0..10_u8, bytes in vec(any::<u8>(), 0..64)) {
        symbols(&[vec![choice], bytes].concat());
    }
}

proptest! {
    #[test]
    fn any_text_is_a_definition_or_an_error(bytes in vec(any::<u8>(), 0..64), text in "([prw:=+%$@(). \\[\\]#'\"\n-]|arg|if|&&|0x|[a-f1-4]|stack|string){0,16}") {
        definitions(&bytes);
        definitions(text.as_bytes());
        filters(&bytes);
        filters(text.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_types_are_written_as_c_within_bounds(
        choice in any::<u8>(),
        bytes in vec(any::<u8>(), 0..64),
    ) {
        types(&[vec![choice], bytes].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_driver_leaves_a_device_that_serves_after_a_reset(
        kind in any::<u8>(),
        actions in vec(any::<u8>(), 0..400),
    ) {
        devices(&[vec![kind], actions].concat());
    }
}

/// Pieces of a console's output.
const CONSOLE: &[&str] = &[
    "\n",
    "\r\n",
    "[    1.000000] ",
    "[    9.000000][    T1] ",
    "[    1.500000][    C0] ",
    "\x1b[1m",
    "\x1b]",
    "    ",
    "# ",
    "====================\n",
    "------------[ cut here ]------------\n",
    "---[ end trace 0000000000000000 ]---\n",
    "---[ end Kernel panic\n",
    "Oops: 0000 [#1] SMP\n",
    "BUG: ",
    "KASAN: x in f+0x1/0x2\n",
    "kernel NULL pointer dereference\n",
    "WARNING: CPU: 0 PID: 1 at f+0x1/0x2\n",
    "WARNING: suspicious RCU usage\n",
    "INFO: task a:1 blocked for more than 1 seconds.\n",
    "rcu: INFO: rcu_preempt self-detected stall on CPU\n",
    "NMI backtrace for cpu 1\n",
    "Kernel panic - not syncing: x\n",
    "a invoked oom-killer: gfp_mask=0\n",
    "Out of memory: Killed process 1 (a) \n",
    "Linux version 6\n",
    "CPU: 0 PID: 1 Comm: a Not tainted\n",
    "Call Trace:\n <TASK>\n f+0x1/0x2\n ? g+0x1/0x2\n </TASK>\n",
    "RIP: 0010:f+0x1/0x2\n",
    "KTAP version 1\n",
    "# Subtest: a\n",
    "1..2\n",
    "1..18446744073709551615\n",
    "ok 1 a\n",
    "not ok 2 b # SKIP c\n",
    "ok 18446744073709551615 a\n",
    "Bail out!\n",
];

proptest! {
    #[test]
    fn any_console_is_read_within_bounds(bytes in vec(any::<u8>(), 0..256)) {
        kernel_log(&bytes);
    }

    #[test]
    fn any_pieces_of_reports_and_results_are_read_within_bounds(
        chunk in any::<u8>(),
        pieces in vec(prop::sample::select(CONSOLE), 0..64),
    ) {
        kernel_log(&[vec![chunk], pieces.concat().into_bytes()].concat());
    }
}
