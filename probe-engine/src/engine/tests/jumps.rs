//! Probes that become jumps, and breakpoints again.

use guest_kernel::Kernel;
use guest_state::{Action, GuestMemory, GuestPhysAddr, GuestVirtAddr};

use super::fixture::{Fixture, PHYS, TEXT, spec, vcpu_at};
use crate::event::Detail;
use crate::probe::{Capture, Optimization, Options, ProbeId, ProbeInfo, Switch};
use crate::ring::layout;

/// Offset of `framed`, and its first bytes: `push %rbp; mov %rsp,%rbp; push %rbx`.
const FRAMED: u64 = 0x340;
const TEXT_BEFORE: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x53];
const INT3: u8 = 0xcc;
const JUMP: u8 = 0xe9;

pub fn jumps() -> Fixture {
    jumps_and(|_| {})
}

/// As `jumps`, with further knowledge of the kernel.
pub fn jumps_and(know: impl FnOnce(&mut Kernel)) -> Fixture {
    Fixture::with_jumps(know)
}

/// Registers one probe, which has to become a jump.
pub fn jump(f: &Fixture, place: &str) -> ProbeInfo {
    let probe = f.probe(place);
    assert_eq!(probe.optimization, Optimization::Waiting);
    f.optimize();
    let probe = f.info(probe.id);
    assert_eq!(probe.optimization, Optimization::Optimized, "{place}");
    probe
}

fn why_not(f: &Fixture, id: ProbeId) -> &'static str {
    match f.info(id).optimization {
        Optimization::Not(why) => why.kind(),
        other => panic!("{other:?}"),
    }
}

/// Where the jump at an offset of the text leads.
fn target(f: &Fixture, offset: u64) -> GuestVirtAddr {
    let by: [u8; 4] = f.bytes_at(PHYS + offset + 1, 4).try_into().unwrap();
    GuestVirtAddr(TEXT + offset + 5).wrapping_add(i64::from(i32::from_le_bytes(by)).cast_unsigned())
}

#[test]
fn a_probe_becomes_a_jump_whose_displacement_traps_where_an_instruction_began() {
    let f = jumps();
    jump(&f, "framed");
    let text = f.bytes_at(PHYS + FRAMED, 5);
    assert_eq!((text[0], text[1], text[4]), (JUMP, 0xcc, 0xcc));
    assert_eq!(f.byte(FRAMED + 5), 0x48, "what follows stays");
    let detour = target(&f, FRAMED);
    assert_eq!(f.engine.arena.detour_at(detour), Some(0));
}

#[test]
fn the_rest_of_the_last_overwritten_instruction_becomes_nops() {
    let f = jumps();
    // sub $0x10,%rsp (4); the loop leads to mov $1,%eax (5).
    let probe = f.probe("wide");
    f.optimize();
    assert_eq!(why_not(&f, probe.id), "branch");
    let probe = jump(&f, "at=framed+0x5");
    assert_eq!(f.bytes_at(PHYS + FRAMED + 10, 1), [0xc3]);
    let text = f.bytes_at(PHYS + FRAMED + 5, 5);
    // sub $8,%rsp; pop %rbx
    assert_eq!((text[0], text[4]), (JUMP, 0xcc));
    assert_eq!(probe.exits, 0);
}

#[test]
fn removal_gives_the_text_back_and_the_same_detour_serves_again() {
    let f = jumps();
    let probe = jump(&f, "framed");
    let first = target(&f, FRAMED);
    f.unregister(&[probe.id]);
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), TEXT_BEFORE);
    jump(&f, "framed");
    assert_eq!(target(&f, FRAMED), first);
}

#[test]
fn a_vcpu_that_comes_to_an_instruction_inside_is_sent_to_its_copy() {
    let f = jumps();
    let probe = jump(&f, "framed");
    for (offset, first) in [(1, 0x48), (4, 0x53)] {
        let mut vcpu = vcpu_at(FRAMED + offset);
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
        let rip = GuestVirtAddr(vcpu.registers.rip);
        assert_eq!(f.engine.arena.detour_at(rip), Some(0));
        assert_eq!(f.wide_bytes(rip, 1), [first], "the copy of +{offset}");
    }
    assert_eq!(f.info(probe.id).exits, 2);
    assert_eq!(
        f.info(probe.id).hits,
        0,
        "the probed instruction is no part"
    );
}

#[test]
fn an_int3_that_the_guest_puts_over_a_jump_is_the_guests() {
    let f = jumps();
    jump(&f, "framed");
    f.set_bytes(FRAMED, &[0xcc]);
    let mut vcpu = vcpu_at(FRAMED);
    assert_eq!(f.trap(&mut vcpu), Action::Reinject);
}

#[test]
fn a_trap_taken_before_the_text_changed_is_tried_again() {
    let f = jumps();
    let probe = jump(&f, "framed");
    let mut vcpu = vcpu_at(FRAMED);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + FRAMED);
    f.unregister(&[probe.id]);
    let mut vcpu = vcpu_at(FRAMED + 1);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + FRAMED + 1);
}

#[test]
fn a_tripwire_that_is_hit_over_and_over_ends_the_jump() {
    let f = jumps();
    let probe = jump(&f, "framed");
    for _ in 0..1000 {
        assert_eq!(f.info(probe.id).optimization, Optimization::Optimized);
        let mut vcpu = vcpu_at(FRAMED + 1);
        f.trap(&mut vcpu);
    }
    f.optimize();
    assert_eq!(why_not(&f, probe.id), "tripwire");
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), [0xcc, 0x48, 0x89, 0xe5, 0x53]);
}

/// The vCPU has passed the breakpoint, and is behind the instruction at the stop that makes the jump.
#[test]
fn a_vcpu_that_stands_in_a_new_jump_s_region_makes_one_exit_more_which_is_told_apart() {
    let f = jumps();
    let probe = f.probe("framed");
    let mut vcpu = vcpu_at(FRAMED);
    f.trap(&mut vcpu);
    // Past the `push`, whether it was emulated or its copy has jumped back.
    vcpu.registers.rip = vcpu_at(FRAMED + 1).registers.rip;
    assert_eq!((f.info(probe.id).exits, f.info(probe.id).trips), (1, 0));
    assert_eq!(f.optimize(), 1);
    f.trap(&mut vcpu);
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.exits, info.trips), (1, 2, 1));
}

#[test]
fn each_cause_makes_a_breakpoint_of_a_jump_until_it_is_gone() {
    type Cause = fn(&Fixture) -> ProbeId;
    let causes: [(&str, Cause); 2] = [
        ("post event", |f| f.probe("x=framed%post").id),
        ("probe inside", |f| f.probe("x=framed+0x4").id),
    ];
    for (kind, cause) in causes {
        let f = jumps();
        let probe = jump(&f, "framed");
        let other = cause(&f);
        assert_eq!(f.byte(FRAMED), 0xcc, "{kind}");
        f.optimize();
        assert_eq!(why_not(&f, probe.id), kind);
        f.unregister(&[other]);
        assert_eq!(f.optimize(), 1, "{kind}");
        assert_eq!(f.byte(FRAMED), JUMP);
    }
}

#[test]
fn disabling_and_both_knobs_make_a_breakpoint_of_a_jump_and_back() {
    let f = jumps();
    let probe = jump(&f, "framed");
    f.enable(probe.id, false);
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), TEXT_BEFORE);
    assert_eq!(why_not(&f, probe.id), "disabled");
    f.enable(probe.id, true);
    assert_eq!(f.byte(FRAMED), 0xcc);
    assert_eq!(f.optimize(), 1);

    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), TEXT_BEFORE);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    assert_eq!(f.optimize(), 1);

    f.engine
        .switch(&f.guest(), Some(&[probe.id]), Switch::Optimize(false))
        .unwrap();
    assert_eq!(f.byte(FRAMED), 0xcc);
    f.optimize();
    assert_eq!(why_not(&f, probe.id), "asked");
    f.engine
        .switch(&f.guest(), Some(&[probe.id]), Switch::Optimize(true))
        .unwrap();
    assert_eq!(f.optimize(), 1);

    f.engine
        .switch(&f.guest(), None, Switch::Optimize(false))
        .unwrap();
    assert_eq!(f.byte(FRAMED), 0xcc);
    f.optimize();
    assert_eq!(why_not(&f, probe.id), "switched off");
    f.engine
        .switch(&f.guest(), None, Switch::Optimize(true))
        .unwrap();
    assert_eq!(f.optimize(), 1);
    assert_eq!(f.byte(FRAMED), JUMP);
}

#[test]
fn a_site_that_changes_between_preparing_and_stopping_is_prepared_again() {
    let f = jumps();
    let probe = f.probe("framed");
    let prepared = f.engine.prepare_jumps(&*f.memory);
    f.enable(probe.id, false);
    f.enable(probe.id, true);
    assert_eq!(f.engine.commit_jumps(&f.guest(), &prepared).unwrap(), 0);
    assert_eq!(f.byte(FRAMED), 0xcc);
    assert!(f.engine.has_waiting());
    assert_eq!(f.optimize(), 1);
    assert!(!f.engine.has_waiting() || f.optimize() == 0);
}

#[test]
fn text_that_the_guest_has_changed_meanwhile_stays_as_it_is() {
    let f = jumps();
    f.probe("framed");
    let prepared = f.engine.prepare_jumps(&*f.memory);
    f.set_bytes(FRAMED + 4, &[0x90]);
    assert_eq!(f.engine.commit_jumps(&f.guest(), &prepared).unwrap(), 0);
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), [0xcc, 0x48, 0x89, 0xe5, 0x90]);
}

#[test]
fn text_reads_as_if_there_were_no_jump() {
    let f = jumps();
    let probe = jump(&f, "framed");
    // The text is decoded from the function's start, with the bytes under the jump.
    let inside = f.probe("x=framed+0x5");
    assert_eq!(inside.instruction, "sub $8,%rsp");
    f.optimize();
    assert_eq!(f.info(probe.id).optimization, Optimization::Optimized);
    assert_eq!(f.info(inside.id).optimization, Optimization::Optimized);
    assert!(f.refusal("framed+0x2").to_string().contains("inside"));
}

#[test]
fn probes_of_one_instruction_share_a_jump() {
    let f = jumps();
    let mut counting = spec("b=framed");
    counting.options = Options {
        capture: Capture::Count,
        ..Options::default()
    };
    let probes = f.engine.register(&f.guest(), &[spec("a=framed"), counting]);
    let ids: Vec<_> = probes.unwrap().iter().map(|probe| probe.id).collect();
    assert_eq!(f.optimize(), 2);
    put_record(&f, 0);
    assert_eq!(f.engine.drain_all(&*f.memory).records, 1);
    assert_eq!(f.details(), [(ids[0], Detail::Pre)]);
    assert_eq!((f.hit_count(ids[0]), f.hit_count(ids[1])), (1, 1));
}

#[test]
fn records_that_nobody_reads_count() {
    let f = jumps();
    let id = jump(&f, "framed").id;
    for (on, hits, events) in [(false, 1, 0), (true, 2, 1)] {
        f.read_events(on);
        put_record(&f, 0);
        assert_eq!(f.engine.drain_all(&*f.memory).records, 1);
        assert_eq!((f.hit_count(id), f.events().len()), (hits, events));
    }
}

#[test]
fn counters_become_hits_or_missed_ones() {
    let f = jumps();
    let mut counting = spec("b=framed");
    counting.options.capture = Capture::Count;
    let id = f.engine.register(&f.guest(), &[counting]).unwrap()[0].id;
    assert_eq!(f.optimize(), 1);
    for (cpu, times) in [(0, 3_u32), (1, 4)] {
        let cell = block(&f, cpu) + layout::CELLS;
        f.memory
            .write(GuestPhysAddr(cell), &times.to_le_bytes())
            .unwrap();
    }
    f.engine.drain(&*f.memory);
    assert_eq!(f.hit_count(id), 7);
    assert_eq!(f.info(id).missed, 0);
    f.unregister(&[id]);

    let probe = jump(&f, "framed");
    let cell = block(&f, 0) + layout::CELLS + layout::CELL;
    f.memory
        .write(GuestPhysAddr(cell), &5_u32.to_le_bytes())
        .unwrap();
    f.engine.drain(&*f.memory);
    assert_eq!((f.hit_count(probe.id), f.info(probe.id).missed), (0, 5));
}

#[test]
fn a_counter_that_the_guest_wrote_to_before_there_was_a_detour_counts_nothing() {
    let f = jumps();
    jump(&f, "framed");
    let second = block(&f, 0) + layout::CELLS + layout::CELL;
    f.memory
        .write(GuestPhysAddr(second), &1234_u32.to_le_bytes())
        .unwrap();
    let probe = jump(&f, "framed+0x5");
    f.engine.drain(&*f.memory);
    assert_eq!((f.hit_count(probe.id), f.info(probe.id).missed), (0, 0));
}

/// A CPU's block in physical memory.
pub fn block(f: &Fixture, cpu: u64) -> u64 {
    let environment = f.engine.environment(&*f.memory).unwrap();
    let at = super::fixture::gs_base(cpu).wrapping_add(environment.block);
    f.engine.arena.phys(GuestVirtAddr(at)).unwrap().0
}

/// Does what a detour that records all registers does, on the first vCPU.
pub fn put_record(f: &Fixture, detour: u32) {
    let words = (layout::RECORD_VALUES / 8 + 17) as u8;
    let head = block(f, 0) + layout::HEAD;
    let at = f.word(head);
    let ring = f.engine.arena.phys(crate::arena::RINGS).unwrap().0;
    f.set_word(ring + at + layout::RECORD_TSC, 7);
    f.set_word(ring + at, layout::header(detour, words));
    f.set_word(head, at + u64::from(words) * 8);
}

/// A jump with an int3 of the guest's over it, and the bytes of the text then.
fn held() -> (Fixture, ProbeInfo, Vec<u8>) {
    let f = jumps();
    let probe = jump(&f, "framed");
    let ours = f.bytes_at(PHYS + FRAMED, 5);
    f.set_bytes(FRAMED, &[0xcc]);
    (f, probe, ours)
}

#[test]
fn the_detour_of_a_jump_that_is_none_any_more_is_idle_whatever_ended_it() {
    let f = jumps();
    let idle = || f.engine.arena.idle_detours();
    let mut counts = spec("one=framed");
    counts.options.capture = Capture::Count;
    f.engine.register(&f.guest(), &[counts]).unwrap();
    assert_eq!(f.optimize(), 1);
    // For a probe that wants records, another jump is made.
    let second = f.probe("two=framed");
    assert_eq!(idle(), 1, "registering");
    f.optimize();
    f.enable(second.id, false);
    f.optimize();
    f.engine
        .switch(&f.guest(), None, Switch::Optimize(false))
        .unwrap();
    let all = f
        .engine
        .list()
        .iter()
        .map(|probe| probe.id)
        .collect::<Vec<_>>();
    f.unregister(&all);
    let there = f.engine.arena.with(|arena| arena.detours().0).unwrap();
    assert_eq!(idle(), there);
}

#[test]
fn a_jump_that_the_guest_holds_works_until_it_is_given_back_and_goes_then() {
    let (f, probe, ours) = held();
    f.unregister(&[probe.id]);
    assert_eq!(f.bytes_at(PHYS + FRAMED + 1, 4), ours[1..], "all stays");
    let mut vcpu = vcpu_at(FRAMED);
    assert_eq!(f.trap(&mut vcpu), Action::Reinject);
    let mut vcpu = vcpu_at(FRAMED + 1);
    assert_eq!(f.trap(&mut vcpu), Action::Resume, "tripwires stay");
    let rip = GuestVirtAddr(vcpu.registers.rip);
    assert_eq!(f.engine.arena.detour_at(rip), Some(0));

    assert!(f.engine.has_waiting());
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED + 1, 4), ours[1..]);
    f.set_bytes(FRAMED, &[JUMP]);
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), TEXT_BEFORE);
    assert!(!f.engine.debugging().breakpoints);
    jump(&f, "framed");
}

#[test]
fn where_the_guest_holds_a_jump_no_int3_is_ours() {
    let (f, probe, ours) = held();
    f.engine
        .switch(&f.guest(), None, Switch::Optimize(false))
        .unwrap();
    assert!(!matches!(
        f.info(probe.id).optimization,
        Optimization::Optimized
    ));
    let mut vcpu = vcpu_at(FRAMED);
    assert_eq!(f.trap(&mut vcpu), Action::Reinject);
    f.unregister(&[probe.id]);
    assert_eq!(f.byte(FRAMED), 0xcc, "the guest's");
    assert_eq!(f.bytes_at(PHYS + FRAMED + 1, 4), ours[1..]);
    f.set_bytes(FRAMED, &[JUMP]);
    // The probe is registered before the optimizer has seen that the guest's int3 is gone.
    let probe = f.probe("framed");
    assert_eq!(f.byte(FRAMED), JUMP);
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5)[..2], [0xcc, 0x48]);
    assert_eq!(why_not(&f, probe.id), "switched off");
}

#[test]
fn a_nop_behind_a_jump_is_no_padding_where_a_table_of_the_kernel_leads_to_it() {
    // jmp . + 0x12; three nops
    const JUMPS: [u8; 5] = [0xeb, 0x10, 0x90, 0x90, 0x90];
    for (offset, is_label, kind) in [
        (2, true, Some("branch")),
        (4, true, Some("branch")),
        (5, true, None),
        (2, false, None),
        (4, false, None),
        (5, false, None),
    ] {
        let f = Fixture::with_jumps(|kernel| {
            let landing = vec![GuestVirtAddr(TEXT + FRAMED + offset)];
            match is_label {
                true => kernel.landings.labels = landing,
                false => kernel.landings.fix_ups = landing,
            }
        });
        f.set_bytes(FRAMED, &JUMPS);
        let probe = f.probe("framed");
        f.optimize();
        match kind {
            Some(kind) => assert_eq!(why_not(&f, probe.id), kind, "{offset}"),
            None => assert_eq!(f.byte(FRAMED), JUMP, "{offset}"),
        }
        // A vCPU that comes from a fix-up is led to the nop's copy by a tripwire, as if no jump were there.
        if !is_label && offset < 5 {
            let wires = f.bytes_at(PHYS + FRAMED + 2, 3);
            assert_eq!(wires, [INT3; 3], "{offset}");
        }
    }
}

#[test]
fn a_function_that_runs_without_the_cpu_s_gs_base_stays_a_breakpoint() {
    let f = jumps();
    // `wide`: xor %eax,%eax; mov %eax,%gs; call framed; ret
    let call = (FRAMED as i32 - 0x389).to_le_bytes();
    f.set_bytes(0x380, &[0x31, 0xc0, 0x8e, 0xe8, 0xe8]);
    f.set_bytes(0x385, &call);
    f.set_bytes(0x389, &[0xc3]);
    let probes = f
        .register(&["wide", "framed", "framed+0x5", "copied+0x5"])
        .unwrap();
    f.optimize();
    for probe in &probes[..3] {
        assert_eq!(why_not(&f, probe.id), "early code", "{}", probe.name);
    }
    assert_ne!(why_not(&f, probes[3].id), "early code");
}

#[test]
fn a_detour_at_a_function_s_entry_keeps_what_a_probe_further_on_may_record() {
    let f = jumps();
    let mut counting = spec("plain");
    counting.options.capture = Capture::Count;
    f.engine.register(&f.guest(), &[counting]).unwrap();
    assert_eq!(f.optimize(), 1);
    // push %rax; push of a register for the block's address; lahf; seto %al
    let table = f.engine.table();
    let site = table.site(GuestVirtAddr(TEXT + 9)).unwrap();
    let code = &site.jump().unwrap().detour.code[..8];
    assert_eq!(code[0], 0x50, "{code:02x?}");
    assert!(
        code.windows(2).any(|two| two == [0x9f, 0x0f]),
        "{code:02x?}"
    );
}
