//! Which strategy is chosen for an instruction, and why.

use guest_kernel::blacklist::ExceptionTable;
use guest_state::GuestVirtAddr;

use super::fixture::{Fixture, TEXT};
use crate::probe::Strategy::{self, Boost, Emulate, Step};

#[test]
fn the_cheapest_right_way_is_chosen_and_comes_with_its_reason() {
    let f = Fixture::with_arena();
    for (place, strategy, reasons) in [
        ("plain", Emulate, &["the engine does it"][..]),
        (
            "traced+0x6",
            Boost,
            &["repeat prefix", "a copy of it can run elsewhere"],
        ),
        (
            "traced+0x8",
            Boost,
            &["lock prefix", "a copy of it can run elsewhere"],
        ),
        ("copied", Boost, &["a copy of it can run elsewhere"]),
        ("copied+0x2", Boost, &["a copy of it can run elsewhere"]),
        ("copied+0x5", Step, &["exception that can't be foreseen"]),
        ("copied+0x9", Step, &["the FPU records its address"]),
    ] {
        check(&f, place, strategy, reasons);
    }
}

#[test]
fn without_executable_memory_what_cannot_be_emulated_is_stepped_and_says_so() {
    let f = Fixture::new();
    for place in ["traced+0x6", "copied", "copied+0x5"] {
        check(&f, place, Step, &["no place for a copy"]);
    }
    check(&f, "plain", Emulate, &["the engine does it"]);
    assert!(!f.engine.arena_note().is_empty());
}

#[test]
fn an_instruction_whose_fault_the_kernel_expects_is_stepped() {
    let f = Fixture::with_arena_and(|kernel| {
        let sites = [0x2c0, 9].map(|offset| GuestVirtAddr(TEXT + offset));
        kernel.exceptions = ExceptionTable::new(sites);
    });
    check(&f, "copied", Step, &["the kernel expects it to fault"]);
    check(&f, "traced+0x8", Boost, &["a copy"]);
    check(&f, "plain", Emulate, &["the engine does it"]);
}

fn check(f: &Fixture, place: &str, strategy: Strategy, reasons: &[&str]) {
    let probe = f.probe(place);
    assert_eq!(probe.strategy, strategy, "{place}: {}", probe.reason);
    for reason in reasons {
        assert!(probe.reason.contains(reason), "{place}: {}", probe.reason);
    }
}
