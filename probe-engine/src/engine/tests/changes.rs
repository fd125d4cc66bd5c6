//! Several probes at an address, switching them, and batches.

use std::sync::atomic::Ordering;

use guest_kernel::blacklist::Reason;
use guest_state::Action;
use guest_state::testing::TestGuest;

use super::fixture::{ALONE, Fixture, TEXT, blacklist, spec, vcpu_at};
use crate::error::{ChangeError, RegisterError};
use crate::event::Detail;
use crate::probe::{ProbeId, ProbeInfo, ProbeState, Switch};

#[test]
fn a_disabled_probe_is_not_hit_and_the_other_at_its_address_is() {
    let f = Fixture::new();
    let (one, two) = (f.probe("plain").id, f.probe("two=plain").id);
    f.enable(one, false);
    assert_eq!(f.info(one).state, ProbeState::Disabled);
    f.trap(&mut vcpu_at(9));
    assert_eq!((f.hit_count(one), f.hit_count(two)), (0, 1));
    f.enable(two, false);
    assert_eq!(f.byte(9), 0x55);
    assert!(!f.engine.debugging().breakpoints);
    f.enable(one, true);
    assert_eq!(f.byte(9), 0xcc);
    f.trap(&mut vcpu_at(9));
    assert_eq!((f.hit_count(one), f.hit_count(two)), (1, 1));
}

#[test]
fn a_probe_can_be_registered_disabled() {
    let f = Fixture::new();
    let mut spec = spec("plain");
    spec.enabled = false;
    let probe = f.engine.register(&f.guest(), &[spec]).unwrap().remove(0);
    assert_eq!((probe.state, f.byte(9)), (ProbeState::Disabled, 0x55));
    f.enable(probe.id, true);
    assert_eq!(
        (f.info(probe.id).state, f.byte(9)),
        (ProbeState::Armed, 0xcc)
    );
}

#[test]
fn enabling_a_batch_with_an_unknown_number_changes_nothing() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    let error = f
        .engine
        .switch(&f.guest(), Some(&[id, ProbeId(77)]), Switch::Enabled(false));
    assert!(error.unwrap_err().to_string().contains("77"));
    assert_eq!((f.info(id).state, f.byte(9)), (ProbeState::Armed, 0xcc));
}

#[test]
fn disarming_all_keeps_each_probes_own_state() {
    let f = Fixture::new();
    let (on, off) = (f.probe("plain").id, f.probe("traced").id);
    f.enable(off, false);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert!(f.engine.is_disarmed());
    assert!(!f.engine.debugging().breakpoints);
    assert_eq!((f.byte(9), f.byte(0x45)), (0x55, 0x53));
    let later = f.probe("copied").id;
    assert_eq!(f.byte(0x2c0), 0x0f);
    let states = [on, off, later].map(|id| f.info(id).state);
    use ProbeState::{Armed, Disabled};
    assert_eq!(states, [Armed, Disabled, Armed]);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    let bytes = [9, 0x45, 0x2c0].map(|offset| f.byte(offset));
    assert_eq!(bytes, [0xcc, 0x53, 0xcc]);
}

#[test]
fn a_breakpoint_of_the_guests_own_at_a_disarmed_site_is_given_back() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    f.enable(id, false);
    let mut vcpu = vcpu_at(9);
    let before = vcpu.registers;
    assert_eq!(f.trap(&mut vcpu), Action::Resume, "a trap from before");
    assert_eq!(vcpu.registers, before);
    f.set_bytes(9, &[0xcc]);
    assert_eq!(f.trap(&mut vcpu), Action::Reinject);
    assert!(f.events().is_empty());
}

#[test]
fn a_refusal_names_the_probe_of_the_batch_that_it_is_about() {
    let f = Fixture::new();
    let refused = |places: &[&str]| {
        let specs: Vec<_> = places.iter().map(|place| spec(place)).collect();
        let refused = f.engine.register(&f.guest(), &specs).unwrap_err();
        (refused.index, f.engine.list().len())
    };
    assert_eq!(refused(&["plain", "copied", "no_such"]), (Some(2), 0));
    assert_eq!(refused(&["a=plain", "a=plain+0x9"]), (Some(1), 0));
    let five = [
        "table/1",
        "table+0x1/1",
        "table+0x2/1",
        "table+0x3/1",
        "table+0x4/1",
    ];
    assert_eq!(refused(&five), (None, 0));
}

#[test]
fn probes_are_listed_in_parts_by_their_numbers() {
    let f = Fixture::new();
    let ids = f.register(&["plain", "copied", "traced"]).unwrap();
    let ids: Vec<_> = ids.iter().map(|probe| probe.id).collect();
    let listed = |after, most| {
        let found = f.engine.list_after(after, most);
        found.iter().map(|probe| probe.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, 2), ids[..2]);
    assert_eq!(listed(Some(ids[1]), 2), ids[2..]);
    assert_eq!(listed(Some(ids[2]), 2), []);
}

#[test]
fn a_refused_batch_gives_its_slots_back() {
    let f = Fixture::with_arena();
    for batch in [
        &["copied", "stepped", "plain+0x1"][..],
        &["copied", "stepped", "again=copied", "copied"],
        &["copied", "stepped", "a b=traced+0x8"],
    ] {
        f.register(batch).unwrap_err();
        assert_eq!((f.byte(0x2c0), f.byte(0x280)), (0x0f, 0xf0));
        assert!(f.engine.list().is_empty());
    }
    assert_eq!(f.reclaim(), 3, "all that were given out");
    let ids = f.register(&["copied", "again=copied"]).unwrap();
    f.refusal("copied");
    assert_eq!(f.reclaim(), 0);
    f.unregister(&[ids[0].id]);
    assert_eq!(f.reclaim(), 0);
    f.unregister(&[ids[1].id]);
    assert_eq!(f.reclaim(), 1);
}

#[test]
fn events_go_to_the_probes_in_the_order_of_their_registration() {
    let f = Fixture::new();
    let ids = f.register(&["a=plain", "b=plain%post", "c=plain"]).unwrap();
    f.trap(&mut vcpu_at(9));
    let pre = |i: usize| (ids[i].id, Detail::Pre);
    assert_eq!(
        f.details(),
        [pre(0), pre(1), pre(2), (ids[1].id, Detail::Post)]
    );
}

#[test]
fn what_the_kernel_patches_or_rules_out_is_refused_with_its_kind() {
    let f = Fixture::with_arena_and(|kernel| {
        kernel.blacklist = blacklist(&[
            // The last byte of a lock incl.
            (0x2cd, 1, Reason::JumpLabel),
            (0x140, 2, Reason::Noinstr),
            (0x2c2, 3, Reason::Alternative),
        ]);
    });
    for (place, kind, reason) in [
        ("copied+0xb", "(jump-label)", "static key"),
        ("0xffffffff81000140", "(noinstr)", "free of instrumentation"),
        ("copied+0x2", "(alternative)", "at boot"),
    ] {
        let message = f.refusal(place).to_string();
        assert!(
            message.contains(kind) && message.contains(reason),
            "{message}"
        );
    }
    f.register(&["copied", "copied+0x5"]).unwrap();
    // Places that the kernel patches only once can be probed when it has started.
    f.engine.arm_milestones(&f.guest()).unwrap();
    f.trap(&mut vcpu_at(0xc9));
    assert_eq!(f.probe("copied+0x2").address.0, TEXT + 0x2c2);
    f.refusal("copied+0xb");
}

#[test]
fn a_lone_step_of_one_vcpu_leaves_the_other_vcpus_step_alone() {
    let f = Fixture::new();
    f.register(&["copied", "traced+0x8"]).unwrap();
    let (mut one, mut two) = (vcpu_at(0x2c0), vcpu_at(0x48));
    two.id = 1.into();
    assert_eq!((f.trap(&mut one), f.trap(&mut two)), (ALONE, ALONE));
    use guest_state::StepEnd::Done;
    for (vcpu, len) in [(&mut one, 2), (&mut two, 3)] {
        assert!(f.engine.lift_for_step(&*f.memory, vcpu));
        vcpu.registers.rip += len;
        f.engine.after_step(&*f.memory, vcpu, Done);
    }
    assert_eq!((f.byte(0x2c0), f.byte(0x48)), (0xcc, 0xcc));
}

/// A stopped guest whose monitor refuses any change of what the vCPUs are debugged for.
fn refusing(f: &Fixture) -> TestGuest<'_> {
    let guest = f.guest();
    *guest.debugging.lock().unwrap() = f.engine.debugging();
    guest.refuses_debugging.store(true, Ordering::Relaxed);
    guest
}

#[test]
fn a_change_that_the_vcpus_cannot_be_debugged_for_changes_nothing() {
    let f = Fixture::new();
    let refused = f.engine.register(&refusing(&f), &[spec("plain")]);
    let refused = refused.map_err(|refused| refused.error);
    assert!(matches!(refused, Err(RegisterError::Debugging(_))));
    assert_eq!((f.engine.list().len(), f.byte(9)), (0, 0x55));

    let id = f.probe("plain").id;
    f.enable(id, false);
    let refused = f
        .engine
        .switch(&refusing(&f), Some(&[id]), Switch::Enabled(true));
    assert!(matches!(refused, Err(ChangeError::Debugging(_))));
    let now = (f.info(id).state, f.byte(9));
    assert_eq!(now, (ProbeState::Disabled, 0x55));

    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    f.enable(id, true);
    let refused = f.engine.switch(&refusing(&f), None, Switch::Enabled(true));
    assert!(matches!(refused, Err(ChangeError::Debugging(_))));
    assert_eq!((f.engine.is_disarmed(), f.byte(9)), (true, 0x55));

    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    assert_eq!(f.byte(9), 0xcc);
}

#[test]
fn the_vcpus_are_debugged_for_what_the_probes_need_and_no_more() {
    let f = Fixture::new();
    let guest = f.guest();
    let check = |breakpoints| {
        let now = guest.debugging.lock().unwrap().clone();
        assert_eq!(now, f.engine.debugging());
        assert_eq!(now.breakpoints, breakpoints);
    };
    let ids = |probes: Vec<ProbeInfo>| probes.iter().map(|probe| probe.id).collect::<Vec<_>>();
    let one = ids(f.engine.register(&guest, &[spec("plain")]).unwrap());
    check(true);
    f.engine.register(&guest, &[spec("no_such")]).unwrap_err();
    check(true);
    f.engine
        .switch(&guest, Some(&one), Switch::Enabled(false))
        .unwrap();
    check(false);
    f.engine
        .switch(&guest, Some(&one), Switch::Enabled(true))
        .unwrap();
    check(true);
    f.engine
        .switch(&guest, None, Switch::Enabled(false))
        .unwrap();
    check(false);
    f.engine
        .switch(&guest, None, Switch::Enabled(true))
        .unwrap();
    check(true);
    f.engine.unregister(&guest, &one).unwrap();
    check(false);
}
