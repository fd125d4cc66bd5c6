//! Whole texts of consoles, and the results of tests in them.

use std::time::Duration;

use vmprobe_kernel_log::ktap::{Case, Outcome, Parser, Results};

fn results_of(console: &str) -> Results {
    let mut parser = Parser::new();
    console.lines().for_each(|line| parser.line(line));
    parser.finish()
}

fn told(case: &Case) -> String {
    let outcome = match &case.outcome {
        Outcome::Skip { reason } => format!("skip({reason})"),
        Outcome::Todo { reason } => format!("todo({reason})"),
        other => format!("{other:?}").to_lowercase(),
    };
    let mut text = format!("{}: {outcome}", case.path.join("/"));
    if !case.remark.is_empty() && !outcome.contains('(') {
        text += &format!(" # {}", case.remark);
    }
    if !case.diagnostics.is_empty() {
        text += &format!(" {:?}", case.diagnostics);
    }
    text
}

fn check(console: &str, cases: &[&str], problems: &[&str]) {
    let results = results_of(console);
    let found: Vec<_> = results.cases.iter().map(told).collect();
    assert_eq!(found, cases, "{console}");
    assert_eq!(results.problems, problems, "{console}");
}

/// Composed after what `lib/kunit/test.c` of 6.12 prints.
const KUNIT: &str = "\
[    0.500000] KTAP version 1
[    0.500000] 1..2
[    0.500100]     KTAP version 1
[    0.500100]     # Subtest: example
[    0.500100]     # module: kunit_example_test
[    0.500100]     1..4
[    0.500200]     # simple: initializing
[    0.501100]     ok 1 simple
[    0.501200]     # skipped: You should not see this
[    0.501300]     ok 2 skipped # SKIP this test should be skipped
[    0.501400]         KTAP version 1
[    0.501400]         # Subtest: params
[    0.501500]         ok 1 value 1
[    0.501600]         ok 2 value 2 # SKIP unsupported
[    0.501600]     # params: pass:1 fail:0 skip:1 total:2
[    0.501700]     ok 3 params
[    0.501800]     # broken: EXPECTATION FAILED at lib/x.c:12
[    0.501800]     Expected 1 + 1 == 3, but
[    0.501800]         1 + 1 == 2 (0x2)
[    0.501900]     not ok 4 broken
[    0.501900] # example: pass:2 fail:1 skip:1 total:4
[    0.501900] # Totals: pass:2 fail:1 skip:2 total:5
[    0.502000] not ok 1 example
[    0.502100]     KTAP version 1
[    0.502100]     # Subtest: other
[    0.502100]     1..1
[    0.502200]     ok 1 only
[    0.502300] ok 2 other
[    0.600000] Run /init as init process
";

#[test]
fn results_of_kunit_are_within_each_other_by_indentation() {
    check(
        KUNIT,
        &[
            "example/simple: pass [\"    # simple: initializing\"]",
            "example/skipped: skip(this test should be skipped) [\"    # skipped: You should not see this\"]",
            "example/params/value 1: pass",
            "example/params/value 2: skip(unsupported)",
            "example/broken: fail [\"    # broken: EXPECTATION FAILED at lib/x.c:12\", \"    Expected 1 + 1 == 3, but\", \"        1 + 1 == 2 (0x2)\"]",
            "other/only: pass",
        ],
        &[],
    );
    let results = results_of(KUNIT);
    assert_eq!(results.cases[0].duration, Some(Duration::from_micros(1000)));
    assert!(!results.is_success());
}

#[test]
fn a_kernel_without_times_is_read_as_well() {
    let bare: String = KUNIT
        .lines()
        .map(|line| format!("{}\n", &line[15..]))
        .collect();
    let (bare, stamped) = (results_of(&bare), results_of(KUNIT));
    assert_eq!(bare.cases.len(), stamped.cases.len());
    for (bare, stamped) in bare.cases.iter().zip(&stamped.cases) {
        assert_eq!((told(bare), bare.duration), (told(stamped), None));
    }
}

#[test]
fn results_are_complete_when_the_plan_is_met() {
    let mut parser = Parser::new();
    for line in KUNIT.lines() {
        assert!(!parser.is_complete(), "{line}");
        parser.line(line);
        if line.ends_with("ok 2 other") {
            break;
        }
    }
    assert!(parser.is_complete());
}

#[test]
fn a_crash_leaves_the_test_without_a_result() {
    check(
        "[    0.500000] KTAP version 1\n\
         [    0.500000] 1..3\n\
         [    0.500100]     KTAP version 1\n\
         [    0.500100]     # Subtest: example\n\
         [    0.500100]     1..4\n\
         [    0.501100]     ok 1 simple\n\
         [    0.501200]     # crashing: about to\n\
         [    0.501300] BUG: kernel NULL pointer dereference, address: 0000000000000000\n\
         [    0.501400] Kernel panic - not syncing: Fatal exception\n",
        &[
            "example/simple: pass",
            "example/crashing: unfinished [\"    # crashing: about to\", \"BUG: kernel NULL pointer dereference, address: 0000000000000000\", \"Kernel panic - not syncing: Fatal exception\"]",
        ],
        &[
            "example has 1 of 4 results",
            "example has no result of its own",
            "the whole has 0 of 3 results",
        ],
    );
    check(
        "KTAP version 1\n1..2\n    KTAP version 1\n    # Subtest: a\n    1..2\n    ok 1 x\n",
        &["a/x: pass", "a/test 2: unfinished"],
        &[
            "a has 1 of 2 results",
            "a has no result of its own",
            "the whole has 0 of 2 results",
        ],
    );
    check(
        "KTAP version 1\n1..2\n    KTAP version 1\n    # Subtest: a\n    1..1\n    ok 1 x\nok 1 a\n",
        &["a/x: pass", "test 2: unfinished"],
        &["the whole has 1 of 2 results"],
    );
}

#[test]
fn the_next_suite_ends_one_that_has_no_result() {
    check(
        "KTAP version 1\n1..2\n\
         \x20   KTAP version 1\n    # Subtest: a\n    1..2\n    ok 1 x\n\
         \x20   KTAP version 1\n    # Subtest: b\n    1..1\n    ok 1 y\n\
         ok 2 b\n",
        &["a/x: pass", "a/test 2: unfinished", "b/y: pass"],
        &["a has 1 of 2 results", "a has no result of its own"],
    );
}

#[test]
fn older_kunit_has_one_version_line_and_dashes() {
    // lib/kunit/test.c of 5.10 and 6.1.
    check(
        "TAP version 14\n1..2\n\
         \x20   # Subtest: a\n    1..2\n    ok 1 - x\n    not ok 2 - y\nnot ok 1 - a\n\
         \x20   # Subtest: b\n    1..1\n    ok 1 - z # SKIP no\nok 2 - b # SKIP\n",
        &["a/x: pass", "a/y: fail", "b/z: skip(no)"],
        &[],
    );
}

#[test]
fn suites_of_a_module_begin_without_an_outer_version_line() {
    check(
        "    # Subtest: a\n    1..1\n    ok 1 - x\nok 1 - a\n    # Subtest: b\n    1..1\n    ok 1 - y\nok 2 - b\n",
        &["a/x: pass", "b/y: pass"],
        &[],
    );
}

#[test]
fn results_of_kselftest_are_within_each_other_by_comments() {
    // tools/testing/selftests/kselftest/runner.sh and kselftest.h of 6.12.
    check(
        "hello\n\
         TAP version 13\n\
         1..4\n\
         # timeout set to 45\n\
         # selftests: timers: posix\n\
         # TAP version 13\n\
         # 1..3\n\
         # # testing\n\
         # ok 1 one\n\
         # not ok 2 two\n\
         # ok 3 # SKIP three\n\
         # # Totals: pass:1 fail:1 xfail:0 xpass:0 skip:1 error:0\n\
         not ok 1 selftests: timers: posix # exit=1\n\
         # selftests: timers: script\n\
         # ok by itself\n\
         ok 2 selftests: timers: script\n\
         ok 3 selftests: timers: none # SKIP\n\
         not ok 4 selftests: timers: slow # TIMEOUT 45 seconds\n",
        &[
            "selftests: timers: posix/one: pass [\"# timeout set to 45\", \"# selftests: timers: posix\", \"# # testing\"]",
            "selftests: timers: posix/two: fail",
            "selftests: timers: posix/three: skip(three)",
            "selftests: timers: script: pass [\"# selftests: timers: script\", \"# ok by itself\"]",
            "selftests: timers: none: skip()",
            "selftests: timers: slow: timedout # 45 seconds",
        ],
        &[],
    );
}

#[test]
fn a_test_of_a_program_and_one_of_the_kernel_dont_end_each_other() {
    check(
        "[    1.000000] random: crng init done\n\
         TAP version 13\n\
         1..2\n\
         [    2.000000] KTAP version 1\n\
         [    2.000000] 1..1\n\
         ok 1 one\n\
         [    2.000000] ok 1 kernel\n\
         [    2.100000] WARNING: CPU: 0\n\
         not ok 2 two\n",
        &[
            "kernel: pass",
            "one: pass",
            "two: fail [\"WARNING: CPU: 0\"]",
        ],
        &[],
    );
}

#[test]
fn outcomes_are_those_of_the_directives() {
    check(
        "TAP version 13\n1..6\n\
         not ok 1 a # TODO later\n\
         ok 2 b # XFAIL known\n\
         not ok 3 c # ERROR no memory\n\
         not ok 4 d # SKIP no\n\
         ok 5 e # NEW thing\n\
         ok 6\n",
        &[
            "a: todo(later)",
            "b: todo(known)",
            "c: error # no memory",
            "d: skip(no)",
            "e: pass # NEW thing",
            "test 6: pass",
        ],
        &[],
    );
}

#[test]
fn problems_of_the_results_are_told() {
    check(
        "KTAP version 1\n1..2\nok 1 a\nok 3 b\nok 4 c\n",
        &["a: pass", "b: pass", "c: pass"],
        &[
            "b is result 3, expected was 2",
            "c is one more result than planned",
        ],
    );
    check(
        "KTAP version 1\n1..1\n    KTAP version 1\n    1..2\n    ok 1 x\nok 1 a\n",
        &["a/x: pass"],
        &["a has 1 of 2 results"],
    );
    check(
        "KTAP version 1\n1..2\n    KTAP version 1\n    # Subtest: a\nok 1 a\n    KTAP version 1\n    1..0\nok 2 b # SKIP\n",
        &["a: pass", "b: skip()"],
        &["a has no results"],
    );
    check(
        "KTAP version 1\n1..1\n    KTAP version 1\n    1..1\n    not ok 1 x\nok 1 a\n",
        &["a/x: fail"],
        &["a is ok, but a test in it isn't"],
    );
    check(
        "KTAP version 1\n1..1\n    KTAP version 1\n    1..1\n    ok 1 x\nnot ok 1 a\n",
        &["a/x: pass", "a: fail"],
        &[],
    );
    check(
        "TAP version 13\n1..3\nok 1 a\nBail out! no room\nok 2 b\n",
        &["a: pass", "test 2: unfinished"],
        &[
            "the tests were given up: no room",
            "the whole has 1 of 3 results",
        ],
    );
}

#[test]
fn lines_that_look_like_results_are_none_where_no_results_have_begun() {
    check(
        "ok 1 a\nnot ok 2 b\n1..3\n# Totals: pass:1\nBail out!\n",
        &[],
        &[],
    );
    assert!(!results_of("ok 1 a").is_success());
    assert!(!Parser::new().is_complete());
}

#[test]
fn a_test_that_prints_much_has_its_last_lines() {
    let mut console = "TAP version 13\n1..1\n".to_owned();
    (0..1000).for_each(|n| console += &format!("# line {n}\n"));
    console += "not ok 1 a\n";
    let results = results_of(&console);
    let lines = &results.cases[0].diagnostics;
    assert_eq!(lines.len(), vmprobe_kernel_log::ktap::MAX_DIAGNOSTICS);
    assert_eq!(lines.last().unwrap(), "# line 999");
}

/// The console of Linux 6.12.8 in the configuration of the lab's test kernel (`tests/lab/test-kernel.config`), in
/// QEMU, with `kunit.enable=1`.
#[test]
fn results_of_a_real_boot_are_read() {
    let results = results_of(include_str!("consoles/kunit.txt"));
    assert_eq!(results.problems, [""; 0]);
    assert!(results.is_success());
    let mut suites: Vec<(&str, usize)> = Vec::new();
    for case in &results.cases {
        match suites.last_mut() {
            Some((suite, cases)) if *suite == case.path[0] => *cases += 1,
            _ => suites.push((&case.path[0], 1)),
        }
    }
    let expected = [
        ("example_init", 1),
        ("hash", 2),
        ("kunit_executor_test", 8),
        ("kunit-try-catch-test", 2),
        ("kunit-resource-test", 12),
        ("kunit-log-test", 2),
        ("kunit_status", 2),
        ("kunit_current", 2),
        ("kunit_device", 3),
        ("kunit_fault", 1),
        ("kunit_platform_device", 4),
        ("kunit_platform_driver", 2),
        ("string-stream-test", 12),
        ("kunit-assert", 11),
        ("example", 12),
        ("bitfields", 2),
        ("list-kunit-test", 39),
        ("hlist", 18),
        ("klist", 8),
    ];
    assert_eq!(suites, expected);
    let skipped: Vec<_> = results
        .cases
        .iter()
        .filter(|case| matches!(case.outcome, Outcome::Skip { .. }))
        .map(|case| case.path.join("/"))
        .collect();
    let expected = [
        "kunit-log-test/kunit_log_newline_test",
        "kunit_fault",
        "example/example_skip_test",
        "example/example_mark_skipped_test",
        "example/example_params_test/example value 3",
        "example/example_params_test/example value 0",
    ];
    assert_eq!(skipped, expected);
    let ordering = ["kunit-resource-test", "kunit_resource_test_action_ordering"];
    let ordering = results.cases.iter().find(|case| case.path == ordering);
    assert_eq!(
        ordering.unwrap().diagnostics,
        ["action_order_2", "action_order_2", "action_order_1"]
    );
}

#[test]
fn a_real_boot_that_stops_anywhere_leaves_one_test_unfinished() {
    let console = include_str!("consoles/kunit.txt");
    let lines: Vec<_> = console.lines().collect();
    let begins = lines
        .iter()
        .position(|line| line.ends_with(" 1..19"))
        .unwrap();
    let ends = lines
        .iter()
        .position(|line| line.ends_with("] ok 19 klist"))
        .unwrap();
    for end in begins..ends {
        let results = results_of(&lines[..=end].join("\n"));
        let unfinished = results
            .cases
            .iter()
            .filter(|case| case.outcome == Outcome::Unfinished);
        assert!(unfinished.count() <= 1, "{}", lines[end]);
        assert!(
            !results.is_success() && !results.problems.is_empty(),
            "{}",
            lines[end]
        );
    }
}
