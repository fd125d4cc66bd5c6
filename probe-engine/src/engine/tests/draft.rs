//! Batches that are worked out before the guest stops, and what changes until it does.

use std::sync::atomic::Ordering;

use guest_kernel::kprobes::synthetic::reader;

use super::fixture::{Fixture, image, spec};
use super::guest_kprobes::kprobe;
use crate::error::RegisterError;
use crate::probe::Strategy;

#[test]
fn a_drafted_batch_is_registered_as_one_that_was_not() {
    let places = ["plain", "plain+0xa", "copied", "table/8", "traced%return"];
    let specs: Vec<_> = places.iter().map(|place| spec(place)).collect();
    let (f, other) = (Fixture::with_arena(), Fixture::with_arena());
    let mut draft = f.engine.draft(&*f.memory, &specs);
    let drafted = f.register_drafted(&mut draft);
    assert_eq!(drafted, other.register(&places).unwrap());
}

#[test]
fn copies_are_made_before_the_guest_stops() {
    let f = Fixture::with_arena();
    let specs = [spec("copied")];
    let vacant = f.vacant_slots();
    let mut draft = f.engine.draft(&*f.memory, &specs);
    assert_eq!(f.vacant_slots(), vacant - 1);
    let probes = f.register_drafted(&mut draft);
    assert_eq!(probes[0].strategy, Strategy::Boost);
    assert_eq!(f.vacant_slots(), vacant - 1);
}

#[test]
fn what_the_guest_has_written_until_it_stops_is_probed_as_it_is_then() {
    let f = Fixture::new();
    let specs = [spec("plain"), spec("framed")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    // A nop where push %rbp was.
    f.set_bytes(9, &[0x90]);
    let probes = f.register_drafted(&mut draft);
    let shown: Vec<_> = probes.iter().map(|probe| &*probe.instruction).collect();
    assert_eq!(shown, ["nop", "push %rbp"]);
}

#[test]
fn what_the_guest_has_made_unfit_until_it_stops_is_refused() {
    let f = Fixture::new();
    let specs = [spec("plain+0xa")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    // A byte that 64-bit mode has no instruction for.
    f.set_bytes(9, &[0x06]);
    let refused = f.engine.register_drafted(&f.guest(), &mut draft);
    let refused = refused.map_err(|refused| refused.error);
    assert!(matches!(refused, Err(RegisterError::Undecodable { .. })));
    assert_eq!(f.engine.list().len(), 0);
}

#[test]
fn a_kprobe_that_the_guest_has_registered_until_it_stops_is_in_the_way() {
    let f = Fixture::with_jumps(|kernel| kernel.kprobes = Some(reader(&kernel.symbols)));
    let specs = [spec("framed")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    let _kprobe = kprobe(&f, 0x340);
    let refused = f.engine.register_drafted(&f.guest(), &mut draft);
    let refused = refused.map_err(|refused| refused.error);
    assert!(matches!(refused, Err(RegisterError::GuestKprobe { .. })));
}

#[test]
fn init_text_that_is_freed_until_the_guest_stops_is_refused() {
    let f = Fixture::new();
    let specs = [spec("init_fn")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    f.engine.set_image_map(image(), true);
    let refused = f.engine.register_drafted(&f.guest(), &mut draft);
    let refused = refused.map_err(|refused| refused.error);
    assert!(matches!(refused, Err(RegisterError::InitTextFreed { .. })));
}

#[test]
fn a_second_try_finds_anew_what_the_first_has_taken() {
    let f = Fixture::new();
    let specs = [spec("copied+0x5")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    let guest = f.guest();
    *guest.debugging.lock().unwrap() = f.engine.debugging();
    guest.refuses_debugging.store(true, Ordering::Relaxed);
    f.engine.register_drafted(&guest, &mut draft).unwrap_err();
    let probes = f.register_drafted(&mut draft);
    assert_eq!(probes[0].strategy, Strategy::Step);
}
