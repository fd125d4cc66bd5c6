//! Instructions that are executed in a copy which jumps back.

use guest_state::{Action, GuestVirtAddr, StepEnd};

use super::fixture::{ALONE, Fixture, PHYS, STACK, TEXT, vcpu_at};
use crate::arena::SLOT_AREA;
use crate::event::Detail;
use crate::insn::decode;
use crate::probe::{ProbeId, Strategy, Switch};

const NOP: u8 = 0x90;
const INT3: u8 = 0xcc;

/// Hits the first instruction of `copied`, which is `rdtsc`. Returns the address of its copy.
fn copy_of_rdtsc(f: &Fixture) -> u64 {
    let mut vcpu = vcpu_at(0x2c0);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    vcpu.registers.rip
}

#[test]
fn a_boosted_instruction_goes_on_in_its_copy_which_jumps_back() {
    let f = Fixture::with_arena();
    let probe = f.probe("copied");
    assert_eq!(probe.strategy, Strategy::Boost);
    let copy = copy_of_rdtsc(&f);
    assert!(SLOT_AREA.contains(&copy.into()));
    let code = f.arena_bytes(copy, 8);
    assert_eq!(code[..3], [0x0f, 0x31, NOP]);
    let jump = decode(&code[3..], (copy + 3).into()).unwrap();
    assert_eq!(jump.insn.near_branch_target(), TEXT + 0x2c2);
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.exits), (1, 1));
    assert_eq!(f.details(), [(probe.id, Detail::Pre)]);
    assert_eq!(f.byte(0x2c0), INT3);
}

#[test]
fn the_copy_traps_for_a_post_event_and_goes_on_behind_the_original() {
    let f = Fixture::with_arena();
    let (post, pre) = (f.probe("copied%post").id, f.probe("pre=copied").id);
    let copy = copy_of_rdtsc(&f);
    assert_eq!(f.arena_bytes(copy + 2, 1), [INT3]);
    let mut vcpu = vcpu_at(0);
    (vcpu.registers.rip, vcpu.registers.rax) = (copy + 2, 77);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + 0x2c2);
    assert_eq!(
        f.details(),
        [
            (post, Detail::Pre),
            (pre, Detail::Pre),
            (post, Detail::Post)
        ]
    );
    assert_eq!(f.events()[2].registers, vcpu.registers);
    let counts = |id| (f.info(id).hits, f.info(id).exits);
    assert_eq!((counts(post), counts(pre)), ((1, 2), (1, 1)));
}

#[test]
fn the_copy_traps_only_while_somebody_wants_post_events() {
    let f = Fixture::with_arena();
    let pre = f.probe("copied").id;
    let copy = copy_of_rdtsc(&f);
    let byte = || f.arena_bytes(copy + 2, 1)[0];
    assert_eq!(byte(), NOP);
    let post = f.probe("post=copied%post").id;
    assert_eq!(byte(), INT3);
    f.enable(post, false);
    assert_eq!(byte(), NOP);
    f.enable(post, true);
    assert_eq!(byte(), INT3);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert_eq!(byte(), NOP);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    assert_eq!(byte(), INT3);
    f.unregister(&[post]);
    assert_eq!((byte(), f.byte(0x2c0)), (NOP, INT3));
    f.unregister(&[pre]);
    assert_eq!((byte(), f.byte(0x2c0)), (NOP, 0x0f));
}

#[test]
fn a_trap_behind_the_copy_of_a_probe_removed_meanwhile_is_resumed() {
    let f = Fixture::with_arena();
    let id = f.probe("copied%post").id;
    let copy = copy_of_rdtsc(&f);
    f.unregister(&[id]);
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rip = copy + 2;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, copy + 2, "a nop by now");
    assert_eq!(f.events().len(), 1);
}

#[test]
fn an_int3_of_the_arena_that_marks_no_copys_end_is_the_guests_own_trouble() {
    let f = Fixture::with_arena();
    f.probe("copied%post");
    let copy = copy_of_rdtsc(&f);
    for rip in [copy + 8, copy + 31, copy - 64, SLOT_AREA.start.0 - 0x1000] {
        let mut vcpu = vcpu_at(0);
        vcpu.registers.rip = rip;
        assert_eq!(f.trap(&mut vcpu), Action::Reinject, "{rip:#x}");
        assert_eq!(vcpu.registers.rip, rip);
    }
    assert_eq!(f.events().len(), 1);
}

#[test]
fn identity_mapped_text_is_stepped_where_it_is() {
    let f = Fixture::with_arena();
    f.probe("copied%post");
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rip = PHYS + 0x2c0;
    assert_eq!(f.trap(&mut vcpu), ALONE);
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    vcpu.registers.rip = PHYS + 0x2c2;
    let end = f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    assert_eq!((end, vcpu.registers.rip), (Action::Resume, PHYS + 0x2c2));
    assert_eq!((f.events().len(), f.byte(0x2c0)), (2, INT3));
}

#[test]
fn an_instruction_without_room_for_a_copy_is_stepped_where_it_is_and_no_hit_is_lost() {
    let f = Fixture::with_arena();
    let mut all = Vec::new();
    f.engine.arena.with(|arena| {
        let nop = |_| Ok::<_, &str>(vec![NOP]);
        let slots = (1..).map(GuestVirtAddr);
        let slots = slots.map_while(|at| arena.slot(&*f.memory, at, nop).ok());
        all.extend(slots.take(1 << 20));
    });
    assert!((1..1 << 20).contains(&all.len()));
    let probe = f.probe("copied");
    assert_eq!(probe.strategy, Strategy::Step);
    for hits in 1..=3 {
        let mut vcpu = vcpu_at(0x2c0);
        assert_eq!(f.trap(&mut vcpu), ALONE);
        assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
        vcpu.registers.rip = TEXT + 0x2c2;
        let end = f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
        assert_eq!((end, f.byte(0x2c0)), (Action::Resume, INT3));
        let info = f.info(probe.id);
        assert_eq!((info.hits, info.missed), (hits, 0));
    }
}

#[test]
fn a_division_that_will_fault_is_stepped() {
    let f = Fixture::with_arena();
    assert_eq!(f.probe("copied+0x2").strategy, Strategy::Boost);
    let mut vcpu = vcpu_at(0x2c2);
    vcpu.registers.rcx = 3;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_ne!(vcpu.registers.rip, TEXT + 0x2c2);
    let mut vcpu = vcpu_at(0x2c2);
    assert!(matches!(f.trap(&mut vcpu), Action::Step { .. }));
}

/// Four-level tables that map the first 2 MiB to themselves and nothing else.
fn map_low_memory(f: &Fixture, vcpu: &mut guest_state::testing::TestVcpu) {
    f.set_word(0x1000, 0x2063);
    f.set_word(0x2000, 0x3063);
    f.set_word(0x3000, 0xe3);
    vcpu.control.cr0 = 1 << 31 | 1 << 16;
    vcpu.control.cr3 = 0x1000;
    vcpu.control.efer = 1 << 10;
}

#[test]
fn a_repeated_string_instruction_is_boosted_if_it_will_not_fault() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0x7%post").id;
    let at = |rcx, rdi| {
        let mut vcpu = vcpu_at(0x2c7);
        map_low_memory(&f, &mut vcpu);
        let r = &mut vcpu.registers;
        (r.rcx, r.rsi, r.rdi) = (rcx, 0x9000, rdi);
        vcpu
    };
    let mut vcpu = at(0x3000, 0x1f_0000);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert!(SLOT_AREA.contains(&vcpu.registers.rip.into()));
    // The second repetition goes beyond what is mapped.
    let mut vcpu = at(2, 0x1f_ffff);
    assert!(matches!(f.trap(&mut vcpu), Action::Step { .. }));
    // The one repetition that remains is expected to fault; the hit is still the same one.
    let r = &mut vcpu.registers;
    (r.rcx, r.rsi, r.rdi) = (1, 0x9001, 0x20_0000);
    let end = f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    let address = 0x20_0000.into();
    let error_code = 0b10;
    assert_eq!(
        end,
        Action::PageFault {
            address,
            error_code
        }
    );
    assert_eq!(vcpu.registers.rip, TEXT + 0x2c7);
    assert_eq!(f.hit_count(id), 2);
    let details: Vec<_> = f.details().into_iter().map(|it| it.1).collect();
    assert_eq!(details, [Detail::Pre, Detail::Pre]);
}

#[test]
fn a_foreseen_page_fault_is_raised_at_the_original_address() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0xb%fault").id;
    let mut vcpu = vcpu_at(0x2cb);
    map_low_memory(&f, &mut vcpu);
    vcpu.registers.rdi = 0x30_0000;
    let before = vcpu.registers;
    let (address, error_code) = (0x30_0000.into(), 0b10);
    assert_eq!(
        f.trap(&mut vcpu),
        Action::PageFault {
            address,
            error_code
        }
    );
    assert_eq!(vcpu.registers, before);
    let fault = Detail::Fault {
        vector: 14,
        error_code: Some(0b10),
        address: Some(address),
    };
    assert_eq!(f.details(), [(id, Detail::Pre), (id, fault)]);
    assert_eq!(f.events()[1].registers, before);
    assert_eq!(f.info(id).exits, 1);
}

#[test]
fn an_emulated_instruction_has_its_post_and_fault_events_in_one_exit() {
    let f = Fixture::new();
    let (id, quiet) = (f.probe("plain%both").id, f.probe("quiet=plain").id);
    let mut vcpu = vcpu_at(9);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    let expected = [(id, Detail::Pre), (quiet, Detail::Pre), (id, Detail::Post)];
    assert_eq!(f.details(), expected);
    let post = f.events()[2].registers;
    assert_eq!((post.rip, post.rsp), (TEXT + 10, STACK - 8));
    let mut vcpu = vcpu_at(9);
    map_low_memory(&f, &mut vcpu);
    vcpu.registers.rsp = 0x40_0000;
    let (address, error_code) = (0x3f_fff8.into(), 0b10);
    assert_eq!(
        f.trap(&mut vcpu),
        Action::PageFault {
            address,
            error_code
        }
    );
    let fault = |probe: ProbeId| {
        let address = Some(address);
        let error_code = Some(error_code);
        (
            probe,
            Detail::Fault {
                vector: 14,
                error_code,
                address,
            },
        )
    };
    assert_eq!(f.details().last(), Some(&fault(id)));
    assert_eq!((f.events().len(), f.info(id).exits), (6, 2));
}
