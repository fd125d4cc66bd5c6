//! Panics of the monitor's users: the guest ends, and executes nothing more.

use std::panic::{AssertUnwindSafe, catch_unwind};

use guest_state::StoppedGuest;
use iced_x86::code_asm::dword_ptr;
use vmm::{Ending, confinement::Role};

use crate::{
    report::on_kvm,
    tiny::{DATA, Tiny, guest, word},
};

/// The guest counts here, without an end.
const COUNT: u64 = DATA;

/// A guest that has begun to count.
fn counting() -> Tiny {
    let tiny = guest(1, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.inc(dword_ptr(COUNT))?;
        a.jmp(again)
    });
    tiny.start(|hit| panic!("a trap at {:x}", hit.rip()));
    while count(&tiny) == 0 {}
    tiny
}

fn count(tiny: &Tiny) -> u64 {
    tiny.vm.stopped(|guest| word(guest.memory(), COUNT))
}

/// Why a guest has failed.
fn failure(tiny: &Tiny) -> String {
    match tiny.vm.wait() {
        Ending::Failed { reason } => reason,
        other => panic!("the guest ended otherwise: {other:?}"),
    }
}

#[test]
fn a_guest_ends_where_it_stands_when_what_is_done_with_it_panics() {
    let name = "a_guest_ends_where_it_stands_when_what_is_done_with_it_panics";
    let Some(_report) = on_kvm(name) else {
        return;
    };
    let tiny = counting();
    let mut stood_at = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        tiny.vm.stopped(|guest| {
            stood_at = word(guest.memory(), COUNT);
            panic!("as the test wants it")
        })
    }));
    let message = panicked.unwrap_err();
    assert_eq!(message.downcast_ref(), Some(&"as the test wants it"));
    assert!(failure(&tiny).contains("stood still"));
    assert_eq!(count(&tiny), stood_at);
}

#[test]
fn a_guest_ends_when_a_thread_of_its_own_panics() {
    let name = "a_guest_ends_when_a_thread_of_its_own_panics";
    let Some(_report) = on_kvm(name) else {
        return;
    };
    let tiny = counting();
    let work = || panic!("as the test wants it");
    let thread = tiny.vm.spawn(Role::Engine, "helper".to_owned(), work);
    assert!(failure(&tiny).contains("the thread `helper` panicked"));
    thread.unwrap().join().unwrap_err();
}
