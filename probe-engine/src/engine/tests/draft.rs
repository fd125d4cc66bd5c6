//! Batches that are drafted before the guest stops, and what changes until it stops.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use guest_kernel::kprobes::synthetic::reader;
use guest_state::{GuestMemory, GuestPhysAddr, MemoryError};

use super::fixture::{Fixture, spec, vcpu_at};
use super::guest_kprobes::kprobe;
use super::jumps::jumps;
use crate::engine::Switching;
use crate::engine::changes::plan::Plan;
use crate::engine::sites::site::Site;
use crate::engine::sites::table::Table;
use crate::error::{ChangeError, RegisterError};
use crate::probe::{Optimization, ProbeId, ProbeState, Strategy, Switch};

fn disabling(f: &Fixture, ids: &[ProbeId]) -> Switching {
    let off = Switch::Enabled(false);
    f.engine.draft_switch(Some(ids), off).unwrap()
}

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
fn tens_of_thousands_of_probes_at_one_place_come_and_go_in_their_order() {
    // So many that the test would take minutes if each probe were compared with all others.
    const COUNT: usize = 100_000;
    let f = Fixture::new();
    let before = f.probe("plain").id;
    let specs: Vec<_> = (0..COUNT)
        .map(|number| spec(&format!("of{number}={}", ["plain", "framed"][number % 2])))
        .collect();
    let probes = f.register_drafted(&mut f.engine.draft(&*f.memory, &specs));
    let ids = probes.iter().map(|probe| probe.id);
    let (some, go): (Vec<_>, Vec<_>) =
        ids.partition(|id| (id.0 - probes[0].id.0).is_multiple_of(1000));
    let stay: Vec<_> = [before].into_iter().chain(some).collect();
    f.unregister(&go);
    f.trap(&mut vcpu_at(9));
    let told: Vec<_> = f.events().iter().map(|event| event.probe).collect();
    assert_eq!(told, stay);
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
fn text_that_the_guest_writes_before_the_stop_is_probed_as_it_is_then() {
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
fn text_that_the_guest_makes_unfit_before_the_stop_is_refused() {
    let f = Fixture::new();
    let specs = [spec("plain+0xa")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    // A byte that is no instruction in 64-bit mode.
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
    f.start();
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

#[test]
fn probes_that_come_until_the_guest_stops_stay_beside_those_of_the_draft() {
    let f = Fixture::with_arena();
    let specs = [spec("plain"), spec("copied")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    let mut same = spec("plain");
    same.name = Some("same_place".to_owned());
    f.engine.register(&f.guest(), &[same]).unwrap();
    let probes = f.register_drafted(&mut draft);
    assert_eq!(f.engine.list().len(), 3);
    assert_eq!(f.byte(9), 0xcc);
    f.trap(&mut vcpu_at(9));
    assert_eq!(f.events().len(), 2);
    let ids: Vec<_> = probes.iter().map(|probe| probe.id).collect();
    f.engine.unregister(&f.guest(), &ids).unwrap();
    assert_eq!(f.byte(9), 0xcc, "the other probe is still there");
}

#[test]
fn a_name_that_is_taken_until_the_guest_stops_is_refused() {
    let f = Fixture::new();
    let specs = [spec("plain")];
    let mut draft = f.engine.draft(&*f.memory, &specs);
    let first = f.probe("plain");
    let refused = f.engine.register_drafted(&f.guest(), &mut draft);
    let refused = refused.map_err(|refused| refused.error);
    assert!(matches!(refused, Err(RegisterError::AlreadyExists { id, .. }) if id == first.id));
    assert_eq!(f.engine.list().len(), 1);
}

#[test]
fn a_drafted_removal_leaves_what_has_come_since() {
    let f = Fixture::new();
    let (first, second) = (f.probe("plain"), f.probe("plain+0xa"));
    let mut removal = f.engine.draft_removal(&[first.id, second.id]).unwrap();
    let mut same = spec("plain");
    same.name = Some("same_place".to_owned());
    f.engine.register(&f.guest(), &[same]).unwrap();
    let guest = f.guest();
    f.engine.unregister_drafted(&guest, &mut removal).unwrap();
    assert_eq!(f.engine.list().len(), 1);
    assert_eq!((f.byte(9), f.byte(0xa) == 0xcc), (0xcc, false));
    let ended = f.engine.describe_removed(&removal);
    let ids: Vec<_> = ended.iter().map(|probe| probe.id).collect();
    assert_eq!(ids, [first.id, second.id]);
}

#[test]
fn a_probe_that_goes_until_the_guest_stops_keeps_a_removal_from_being_made() {
    let f = Fixture::new();
    let (first, second) = (f.probe("plain"), f.probe("framed"));
    let mut removal = f.engine.draft_removal(&[first.id, second.id]).unwrap();
    f.engine.unregister(&f.guest(), &[second.id]).unwrap();
    let refused = f.engine.unregister_drafted(&f.guest(), &mut removal);
    assert!(matches!(refused, Err(ChangeError::UnknownProbe { id }) if id == second.id));
    assert_eq!(f.byte(9), 0xcc);
}

#[test]
fn a_drafted_switch_is_committed_as_it_was_planned() {
    let f = Fixture::new();
    let ids = [f.probe("plain").id, f.probe("framed").id];
    let mut switching = disabling(&f, &ids);
    let planned = Arc::clone(&switching.plan.after.table);
    f.engine.switch_drafted(&f.guest(), &mut switching).unwrap();
    assert!(Arc::ptr_eq(&planned, &f.engine.table()));
    let infos = f.engine.describe_switched(&switching);
    assert!(infos.iter().all(|it| it.state == ProbeState::Disabled));
}

#[test]
fn a_drafted_switch_leaves_what_has_come_since() {
    let f = Fixture::new();
    let first = f.probe("plain").id;
    let mut switching = disabling(&f, &[first]);
    let second = f.probe("framed").id;
    f.engine.switch_drafted(&f.guest(), &mut switching).unwrap();
    assert_eq!(f.info(first).state, ProbeState::Disabled);
    assert_eq!(f.info(second).state, ProbeState::Armed);
}

#[test]
fn a_probe_that_goes_until_the_guest_stops_keeps_a_switch_from_being_made() {
    let f = Fixture::new();
    let (first, second) = (f.probe("plain").id, f.probe("framed").id);
    let mut switching = disabling(&f, &[first, second]);
    f.unregister(&[second]);
    for _ in 0..2 {
        let refused = f.engine.switch_drafted(&f.guest(), &mut switching);
        let unknown = Err(ChangeError::UnknownProbe { id: second });
        assert_eq!(refused, unknown, "the same each time that it is tried");
    }
    assert_eq!(f.info(first).state, ProbeState::Armed);
}

#[test]
fn a_plan_lists_the_sites_that_change_and_no_others() {
    let f = Fixture::with_arena();
    let (copied, plain) = (f.probe("copied"), f.probe("plain"));
    let before = f.engine.generation();
    let mut table = Table::clone(&before.table);
    table.change(plain.address, |site| site.probes.clear());
    let registry = Arc::clone(&before.registry);
    let plan = Plan::new(before, registry, table);
    let at = |sites: &[Arc<Site>]| sites.iter().map(|site| site.virt).collect::<Vec<_>>();
    assert_eq!(at(&plan.gone.sites), [plain.address]);
    assert_eq!((at(&plan.come.sites), at(&plan.kept)), (vec![], vec![]));

    // A second probe on an instruction: the text stays, and the plan lists the site as one with
    // other probes than before.
    let before = f.engine.generation();
    let mut table = Table::clone(&before.table);
    let other = before.table.site(plain.address).unwrap().probes[0].clone();
    table.change(copied.address, |site| site.probes.push(other));
    let registry = Arc::clone(&before.registry);
    let plan = Plan::new(before, registry, table);
    assert_eq!(
        (at(&plan.gone.sites), at(&plan.come.sites)),
        (vec![], vec![])
    );
    assert_eq!(at(&plan.kept), [copied.address]);
}

/// Guest memory with one byte that can't be written.
struct Broken<'m> {
    memory: &'m dyn GuestMemory,
    at: GuestPhysAddr,
}

impl GuestMemory for Broken<'_> {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(at, into)
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        if at == self.at {
            let len = from.len();
            return Err(MemoryError { at, len });
        }
        self.memory.write(at, from)
    }
}

#[test]
fn a_change_that_fails_in_its_middle_leaves_all_as_it_was() {
    let f = Fixture::new();
    let ids = [f.probe("plain").id, f.probe("framed").id];
    let table = f.engine.table();
    let sites: Vec<_> = ids
        .map(|id| Arc::clone(table.site(f.info(id).address).unwrap()))
        .into();
    drop(table);
    for on in [false, true] {
        let switch = Switch::Enabled(on);
        let mut switching = f.engine.draft_switch(Some(&ids), switch).unwrap();
        let before = f.engine.table().clone();
        for broken in &sites {
            let memory = Broken {
                memory: &*f.memory,
                at: broken.phys,
            };
            let _registry = f.engine.registry.lock();
            f.engine.apply(&memory, &switching.plan).unwrap_err();
            for site in &sites {
                let expected = if on { site.original } else { 0xcc };
                assert_eq!(f.bytes_at(site.phys.0, 1), [expected]);
            }
            assert!(Arc::ptr_eq(&before, &f.engine.table()));
        }
        f.engine.switch_drafted(&f.guest(), &mut switching).unwrap();
    }
}

/// Guest memory in which something happens at the first read of a place.
struct Meanwhile<'m, F> {
    memory: &'m dyn GuestMemory,
    at: GuestPhysAddr,
    event: Cell<Option<F>>,
}

impl<F: FnOnce()> GuestMemory for Meanwhile<'_, F> {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        if at == self.at
            && let Some(event) = self.event.take()
        {
            event();
        }
        self.memory.read(at, into)
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, from)
    }
}

#[test]
fn a_probe_that_goes_while_jumps_are_prepared_keeps_no_other_from_becoming_one() {
    let f = jumps();
    let head = f.probe("framed");
    let inside = f.probe("x=framed+0x4").id;
    let memory = Meanwhile {
        memory: &*f.memory,
        at: f.engine.table().site(head.address).unwrap().phys,
        event: Cell::new(Some(|| f.unregister(&[inside]))),
    };
    let prepared = f.engine.prepare_jumps(&memory);
    assert!(memory.event.take().is_none(), "the text was not read");
    f.engine.commit_jumps(&f.guest(), &prepared).unwrap();
    f.optimize();
    assert_eq!(f.info(head.id).optimization, Optimization::Optimized);
}
