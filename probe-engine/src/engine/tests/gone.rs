use guest_state::Action;

use super::fixture::{Fixture, TEXT, vcpu_at};
use crate::probe::ProbeState;

#[test]
fn init_text_probes_are_gone_before_the_kernel_frees_that_memory() {
    let f = Fixture::new();
    assert!(f.engine.arm_milestones(&f.guest()).unwrap());
    let (init, stays) = (f.probe("init_fn").id, f.probe("plain").id);
    assert_eq!(
        f.engine.list().len(),
        2,
        "the milestone is no probe of the user's"
    );
    let mut vcpu = vcpu_at(0xc9);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(
        vcpu.registers.rip,
        TEXT + 0xc9,
        "the restored instruction is still to come"
    );
    assert_eq!((f.byte(0x900), f.byte(0xc9), f.byte(9)), (0x55, 0x55, 0xcc));
    let states: Vec<_> = f
        .engine
        .list()
        .iter()
        .map(|probe| (probe.id, probe.state))
        .collect();
    assert_eq!(
        states,
        [(init, ProbeState::Gone), (stays, ProbeState::Armed)]
    );
    assert!(f.events().is_empty());

    // The kernel poisons the freed text with int3s.
    f.set_bytes(0x900, &[0xcc]);
    f.engine.unregister(&f.guest(), &[init]).unwrap();
    assert_eq!(f.byte(0x900), 0xcc, "nothing may be written there any more");
    let message = f.refusal("init_fn").to_string();
    assert!(message.contains("freed"), "{message}");
}

#[test]
fn the_kernel_s_start_is_told_at_once_to_those_who_make_jumps() {
    let f = Fixture::new();
    f.engine.arm_milestones(&f.guest()).unwrap();
    assert_eq!((f.told_of_jumps(), f.engine.is_started()), (0, false));
    f.trap(&mut vcpu_at(0xc9));
    assert_eq!((f.told_of_jumps(), f.engine.is_started()), (1, true));
}

#[test]
fn a_probe_where_init_text_is_freed_is_hit_and_stays() {
    let f = Fixture::new();
    f.probe("free_initmem");
    f.engine.arm_milestones(&f.guest()).unwrap();
    f.probe("init_fn");
    let mut vcpu = vcpu_at(0xc9);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + 0xca);
    assert_eq!(
        (f.events().len(), f.byte(0xc9), f.byte(0x900)),
        (1, 0xcc, 0x55)
    );
}

#[test]
fn removing_the_probe_on_the_milestone_leaves_the_milestone() {
    let f = Fixture::new();
    f.engine.arm_milestones(&f.guest()).unwrap();
    let id = f.probe("free_initmem").id;
    f.engine.unregister(&f.guest(), &[id]).unwrap();
    assert_eq!(f.byte(0xc9), 0xcc);
    assert!(f.engine.debugging().breakpoints);
}

#[test]
fn init_text_that_is_freed_leaves_no_slot_in_use() {
    let f = Fixture::with_arena();
    f.engine.arm_milestones(&f.guest()).unwrap();
    let id = f.probe("init_copied%post").id;
    assert_eq!(f.reclaim(), 0);
    f.trap(&mut vcpu_at(0xc9));
    assert_eq!((f.byte(0x910), f.reclaim()), (0x0f, 1));
    f.unregister(&[id]);
    assert_eq!(f.byte(0x910), 0x0f);
}
