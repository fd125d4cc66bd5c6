//! Return probes at the function's own returns.

use guest_kernel::blacklist::Reason;
use guest_state::testing::TestVcpu;
use guest_state::{Action, Tsc, VcpuId};

use super::fixture::{Fixture, STACK, TEXT, blacklist, spec, vcpu_at};
use super::returns::{CALLER, returned};
use crate::event::Detail;
use crate::probe::{Optimization, ProbeId, ProbeInfo, ProbeKind, ProbeState, Switch};

/// Offset of `wide`, the last function of the text.
const WIDE: u64 = 0x380;
const FRAMED: u64 = 0x340;
const PLAIN: u64 = 9;
const PLAIN_RET: u64 = 14;

/// A fixture of a kernel that has started.
fn fixture() -> Fixture {
    let f = Fixture::with_arena();
    f.start();
    f
}

fn exits(f: &Fixture, place: &str, maxactive: u32) -> ProbeInfo {
    try_exits(f, place, maxactive).unwrap()
}

fn try_exits(
    f: &Fixture,
    place: &str,
    maxactive: u32,
) -> Result<ProbeInfo, crate::error::RegisterError> {
    let mut spec = spec(place);
    spec.kind = ProbeKind::Exits {
        maxactive: Some(maxactive),
    };
    let added = f.engine.register(&f.guest(), &[spec]);
    Ok(added?.remove(0))
}

/// A fixture with `code` as the text of `wide`.
fn with_code(code: &[u8]) -> Fixture {
    let f = fixture();
    f.set_bytes(WIDE, &[0xcc; 0x80]);
    f.set_bytes(WIDE, code);
    f
}

/// A vCPU that traps at an offset with this stack pointer.
fn at(f: &Fixture, offset: u64, rsp: u64) -> (Action, TestVcpu) {
    let mut vcpu = vcpu_at(offset);
    (vcpu.registers.rsp, vcpu.registers.rax) = (rsp, 42);
    (vcpu.id, vcpu.tsc) = (VcpuId(1), Tsc(9));
    (f.trap(&mut vcpu), vcpu)
}

fn call(f: &Fixture, offset: u64, rsp: u64) {
    f.set_word(rsp, CALLER);
    let mut vcpu = vcpu_at(offset);
    (vcpu.registers.rsp, vcpu.tsc) = (rsp, Tsc(5));
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
}

fn details_of(f: &Fixture, id: ProbeId) -> Vec<(u64, u64, bool)> {
    let all = f.details().into_iter();
    let own = all.filter(|(probe, _)| *probe == id);
    own.map(|(_, it)| detail(it)).collect()
}

fn detail(detail: Detail) -> (u64, u64, bool) {
    match detail {
        Detail::Return {
            caller,
            entry,
            tail_call,
            ..
        } => (caller.0, entry.rsp, tail_call),
        other => panic!("{other:?}"),
    }
}

fn details(f: &Fixture) -> Vec<(u64, u64, bool)> {
    f.details().into_iter().map(|(_, it)| detail(it)).collect()
}

#[test]
fn a_return_is_told_at_the_ret_and_the_return_address_stays() {
    let f = fixture();
    let probe = exits(&f, "plain", 10);
    assert_eq!(probe.address.0, TEXT + PLAIN);
    assert_eq!(probe.name, "plain+0x9%return");
    assert_eq!((f.byte(PLAIN), f.byte(PLAIN_RET)), (0xcc, 0xcc));
    call(&f, PLAIN, STACK);
    assert_eq!(f.word(STACK), CALLER);
    assert!(!f.engine.returns.any(), "nothing leads to us");
    assert!(f.events().is_empty());
    let (action, vcpu) = at(&f, PLAIN_RET, STACK);
    assert_eq!((action, vcpu.registers.rip), (Action::Resume, CALLER));
    let event = f.events().remove(0);
    assert_eq!(
        (event.probe, event.vcpu, event.tsc),
        (probe.id, VcpuId(1), Tsc(9))
    );
    assert_eq!(event.registers, vcpu.registers);
    let detail = Detail::Return {
        caller: CALLER.into(),
        entry_tsc: Tsc(5),
        entry: Box::new(vcpu_at(PLAIN).registers),
        tail_call: false,
    };
    assert_eq!(event.detail, detail);
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.missed, info.exits), (1, 0, 2));
}

#[test]
fn all_ways_out_are_found_and_a_tail_call_is_told_as_one() {
    // test %edi,%edi; je 1f; push %rbx; pop %rbx; ret; int3; 1: jmp framed
    let f = with_code(b"\x85\xff\x74\x04\x53\x5b\xc3\xcc\xe9\xb3\xff\xff\xff");
    exits(&f, "wide", 10);
    let planted = (0..13).filter(|offset| f.byte(WIDE + offset) == 0xcc);
    assert_eq!(planted.collect::<Vec<_>>(), [0, 6, 7, 8]);
    call(&f, WIDE, STACK);
    let (_, vcpu) = at(&f, WIDE + 8, STACK);
    assert_eq!(vcpu.registers.rip, TEXT + FRAMED);
    assert_eq!(f.events()[0].registers.rip, TEXT + WIDE + 8);
    call(&f, WIDE, STACK);
    at(&f, WIDE + 6, STACK);
    assert_eq!(details(&f), [(CALLER, STACK, true), (CALLER, STACK, false)]);
}

#[test]
fn a_conditional_jump_out_of_the_function_ends_the_call_only_if_it_is_taken() {
    // test %edi,%edi; jne framed (long); ret
    let f = with_code(b"\x85\xff\x0f\x85\xb8\xff\xff\xff\xc3");
    let id = exits(&f, "wide", 10).id;
    for (flags, hits) in [(1 << 6, 0), (0, 1)] {
        call(&f, WIDE, STACK);
        let mut vcpu = vcpu_at(WIDE + 2);
        vcpu.registers.rflags = 2 | flags;
        f.trap(&mut vcpu);
        assert_eq!(f.hit_count(id), hits);
    }
    assert_eq!(f.info(id).missed, 1, "the call that was entered again");
}

#[test]
fn an_indirect_jump_to_inside_the_function_is_no_way_out() {
    // nop; jmp *%rax; nop; ret
    let f = with_code(b"\x90\xff\xe0\x90\xc3");
    let id = exits(&f, "wide", 10).id;
    call(&f, WIDE, STACK);
    for (target, hits) in [(WIDE + 3, 0), (0x140, 1)] {
        let mut vcpu = vcpu_at(WIDE + 1);
        vcpu.registers.rax = TEXT + target;
        f.trap(&mut vcpu);
        assert_eq!(f.hit_count(id), hits);
    }
}

#[test]
fn recursive_calls_return_each_for_itself() {
    let f = fixture();
    let id = exits(&f, "plain", 10).id;
    for level in 0..3 {
        call(&f, PLAIN, STACK - level * 0x40);
    }
    // A return with RSP inside the function's own frame is no end of a call.
    at(&f, PLAIN_RET, STACK - 0x88);
    assert!(f.events().is_empty());
    for level in [2, 1, 0] {
        at(&f, PLAIN_RET, STACK - level * 0x40);
    }
    let slots: Vec<_> = details(&f).into_iter().map(|(_, rsp, _)| rsp).collect();
    assert_eq!(slots, [STACK - 0x80, STACK - 0x40, STACK]);
    assert_eq!((f.hit_count(id), f.info(id).missed), (3, 0));
}

#[test]
fn calls_beyond_maxactive_and_calls_without_an_end_are_missed() {
    let f = fixture();
    let id = exits(&f, "plain", 2).id;
    for i in 0..3 {
        call(&f, PLAIN, STACK + i * 0x40);
    }
    at(&f, PLAIN_RET, STACK + 0x80);
    assert_eq!((f.hit_count(id), f.info(id).missed), (0, 1));
    // The same task has its return address in the same place again: so the first call is over.
    call(&f, PLAIN, STACK);
    assert_eq!(f.info(id).missed, 2);
    at(&f, PLAIN_RET, STACK);
    at(&f, PLAIN_RET, STACK + 0x40);
    assert_eq!((f.hit_count(id), f.info(id).missed), (2, 2));
}

#[test]
fn an_entry_that_faults_and_is_repeated_is_one_call() {
    let f = fixture();
    let id = exits(&f, "plain", 1).id;
    f.set_word(STACK, CALLER);
    f.set_word(0x1000, 0x2063);
    f.set_word(0x2000, 0x3063);
    f.set_word(0x3000, 0x4063);
    f.set_word(0x4000 + 8 * 8, 0x8063);
    let mut vcpu = vcpu_at(PLAIN);
    vcpu.control.cr0 = 1 << 31 | 1 << 16;
    (vcpu.control.cr3, vcpu.control.efer) = (0x1000, 1 << 10);
    assert!(matches!(f.trap(&mut vcpu), Action::PageFault { .. }));
    f.set_word(0x4000 + 7 * 8, 0x7063);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    at(&f, PLAIN_RET, STACK);
    assert_eq!((f.hit_count(id), f.info(id).missed), (1, 0));
}

#[test]
fn removing_and_disabling_takes_all_breakpoints_out_and_misses_calls_under_way() {
    let f = fixture();
    let id = exits(&f, "plain", 10).id;
    let text = || (f.byte(PLAIN), f.byte(PLAIN_RET));
    call(&f, PLAIN, STACK);
    f.enable(id, false);
    assert_eq!(text(), (0x55, 0xc3));
    assert_eq!(f.info(id).missed, 1);
    f.enable(id, true);
    assert_eq!(text(), (0xcc, 0xcc));
    at(&f, PLAIN_RET, STACK);
    assert!(f.events().is_empty(), "its call was given up");
    call(&f, PLAIN, STACK);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert_eq!((text(), f.info(id).missed), ((0x55, 0xc3), 2));
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    call(&f, PLAIN, STACK);
    let removed = f.engine.unregister(&f.guest(), &[id]).unwrap();
    assert_eq!((text(), removed[0].missed), ((0x55, 0xc3), 3));
    assert_eq!(f.engine.table().len(), 0);
    assert!(!f.engine.debugging().breakpoints);
}

#[test]
fn both_kinds_of_return_probes_and_others_share_a_function() {
    let f = fixture();
    let (at_rets, led) = (exits(&f, "e=plain", 10).id, f.probe("plain%return").id);
    let ret = f.probe("plain+0xe").id;
    call(&f, PLAIN, STACK);
    assert_ne!(f.word(STACK), CALLER);
    let (_, mut vcpu) = at(&f, PLAIN_RET, STACK);
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rip, CALLER);
    assert_eq!(returned(&f), [at_rets, led]);
    assert_eq!(
        details_of(&f, at_rets),
        [(CALLER, STACK, false)],
        "not where the other kind leads"
    );
    f.unregister(&[at_rets]);
    assert_eq!(f.byte(PLAIN_RET), 0xcc);
    assert_eq!(f.hit_count(ret), 1);
    f.unregister(&[led, ret]);
    assert_eq!((f.byte(PLAIN), f.byte(PLAIN_RET)), (0x55, 0xc3));
}

#[test]
fn a_function_that_is_only_a_return_has_its_calls_told() {
    let f = fixture();
    let id = exits(&f, "__fentry__", 10).id;
    f.set_word(STACK, CALLER);
    at(&f, 0x80, STACK);
    assert_eq!((f.hit_count(id), f.info(id).missed), (1, 0));
    assert_eq!(f.info(id).exits, 1);
    f.unregister(&[id]);
    assert_eq!(f.byte(0x80), 0xc3);
}

#[test]
fn the_kernels_returns_by_way_of_a_thunk_are_returns() {
    let site = (WIDE + 1, 5, Reason::ReturnThunk);
    let f = Fixture::with(super::fixture::image(), |kernel| {
        kernel.blacklist = blacklist(&[site]);
    });
    // nop; jmp __fentry__, which stands for the return thunk
    f.set_bytes(WIDE, &[0xcc; 0x80]);
    f.set_bytes(WIDE, b"\x90\xe9\xfa\xfc\xff\xff");
    let message = try_exits(&f, "wide", 1).unwrap_err().to_string();
    assert!(message.contains("once it has started"), "{message}");
    f.start();
    exits(&f, "wide", 1);
    call(&f, WIDE, STACK);
    at(&f, WIDE + 1, STACK);
    assert_eq!(details(&f), [(CALLER, STACK, false)]);
    assert_eq!(f.events()[0].registers.rip, CALLER);
}

#[test]
fn functions_whose_returns_would_not_all_be_seen_are_refused_with_the_place() {
    let tables: [(&[u8], &str); 7] = [
        // nop; ret $8
        (b"\x90\xc2\x08\x00", "0xffffffff81000381 takes arguments"),
        // nop; jmp to the first instruction
        (b"\x90\xeb\xfd", "leads back to its first instruction"),
        // nop; iretq
        (b"\x90\x48\xcf", "it leaves the kernel with a new set"),
        // nop; push %es
        (b"\x90\x06", "no instruction at 0xffffffff81000381"),
        // nop; int3; nop; ret
        (b"\x90\xcc\x90\xc3", "breakpoint of the guest's own at"),
        // ud2
        (b"\x90\x0f\x0b", "never returns"),
        // a return, and then an instruction after which the function ends
        (&[0xc3, 0x55], "goes on behind its end"),
    ];
    for (code, why) in tables {
        let f = with_code(code);
        if why.contains("behind") {
            f.set_bytes(WIDE + 1, &[0x55; 0x480]);
        }
        let text = f.bytes_at(0x10_0000, 0x1000);
        let message = try_exits(&f, "wide", 1).unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
        assert!(message.contains("own returns"), "{message}");
        assert_eq!(f.bytes_at(0x10_0000, 0x1000), text);
        assert_eq!(f.engine.table().len(), 0);
    }
    let ruled_out = Fixture::with(super::fixture::image(), |kernel| {
        kernel.blacklist = blacklist(&[(PLAIN_RET, 1, Reason::StaticCall)]);
    });
    let message = try_exits(&ruled_out, "plain", 1).unwrap_err().to_string();
    assert!(message.contains("static-call"), "{message}");
    assert!(message.contains("0xffffffff8100000e"), "{message}");
    let message = try_exits(&fixture(), "m:f", 1).unwrap_err().to_string();
    assert!(message.contains("in a module"), "{message}");
}

#[test]
fn such_a_probe_is_no_jump_and_takes_no_jumps_place() {
    let f = Fixture::with_jumps(|_| {});
    let id = exits(&f, "framed", 10).id;
    f.optimize();
    let Optimization::Not(why) = f.info(id).optimization else {
        panic!("{:?}", f.info(id));
    };
    assert_eq!(why.kind(), "own returns");
}

#[test]
fn a_probe_whose_text_is_freed_is_gone_everywhere() {
    let f = Fixture::with_arena();
    f.engine.arm_milestones(&f.guest()).unwrap();
    let id = exits(&f, "init_fn", 10).id;
    assert_eq!((f.byte(0x900), f.byte(0x901)), (0xcc, 0xcc));
    call(&f, 0x900, STACK);
    at(&f, 0xc9, STACK);
    assert_eq!((f.byte(0x900), f.byte(0x901)), (0x55, 0xc3));
    assert_eq!(f.info(id).state, ProbeState::Gone);
    assert_eq!(f.info(id).missed, 1);
    f.unregister(&[id]);
}
