use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use guest_state::testing::TestVcpu;
use guest_state::x86_64::flags::RF;
use guest_state::{
    Action, GuestMemory, GuestPhysAddr, GuestVirtAddr, Step, StepEnd, TrapHandler, Tsc, VcpuId,
};

use crate::action::HitAction;
use crate::engine::{Attendant, HeldHit};
use crate::probe::{Capture, Options};

use super::ended;
use super::fixture::{ALONE, Fixture, PHYS, STACK, TEXT, spec, vcpu_at};

const IF: u64 = 1 << 9;

#[test]
fn a_hit_is_recorded_with_the_registers_before_the_instruction() {
    let f = Fixture::new();
    let probe = f.probe("plain");
    let mut vcpu = vcpu_at(9);
    (vcpu.id, vcpu.tsc, vcpu.registers.rbp) = (VcpuId(3), Tsc(99), 0x1234);
    let before = vcpu.registers;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    let hit = f.events().remove(0);
    assert_eq!(
        (hit.probe, hit.vcpu, hit.tsc),
        (probe.id, VcpuId(3), Tsc(99))
    );
    assert_eq!(hit.registers, before);
    assert_eq!(
        (vcpu.registers.rip, vcpu.registers.rsp),
        (TEXT + 10, STACK - 8)
    );
    assert_eq!(f.word(STACK - 8), 0x1234);
    assert_eq!(f.hit_count(probe.id), 1);
}

#[test]
fn hits_whose_events_nobody_reads_count_and_go_on_all_the_same() {
    let f = Fixture::new();
    let probe = f.probe("plain");
    f.read_events(false);
    let hit = || {
        let mut vcpu = vcpu_at(9);
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
        assert_eq!(vcpu.registers.rip, TEXT + 10);
    };
    hit();
    hit();
    assert_eq!((f.hit_count(probe.id), f.events().len()), (2, 0));
    f.read_events(true);
    hit();
    assert_eq!((f.hit_count(probe.id), f.events().len()), (3, 1));
}

#[test]
fn a_page_that_the_host_had_to_bring_in_leaves_nothing_in_the_flags_of_a_hit() {
    let f = Fixture::with_arena();
    let [hit, returned] = [f.probe("plain"), f.probe("plain%return")].map(|probe| probe.id);
    let mut vcpu = vcpu_at(9);
    vcpu.registers.rflags |= RF;
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rflags & RF, 0);
    vcpu.registers.rip = f.word(STACK);
    vcpu.registers.rsp = STACK + 8;
    vcpu.registers.rflags |= RF;
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rflags & RF, 0);
    let flags = |id| {
        let events = f.events();
        let event = events.into_iter().find(|event| event.probe == id).unwrap();
        event.registers.rflags & RF
    };
    assert_eq!([hit, returned].map(flags), [0, 0]);
}

/// An attendant whose own probe is never hit.
struct Idle;

impl Attendant for Idle {
    fn held(&self, _: HeldHit) {}

    fn dropped(&self) {}
}

/// In which ways a hit is examined.
#[derive(Debug, Clone, Copy)]
struct Look {
    in_full: bool,
    is_watched: bool,
    context: bool,
}

/// Returns all effects of a task's hit with RF set. An attendant at another probe makes the engine examine the hit in
/// full.
fn hit_of(place: &str, look: Look) -> impl PartialEq + std::fmt::Debug {
    const PID: u32 = 40;
    let f = Fixture::with_arena_and(|kernel| {
        ended::know(kernel);
        kernel.variables.pid = Some(PID);
    });
    let mut spec = spec(place);
    spec.options.context = look.context;
    let id = f.engine.register(&f.guest(), &[spec]).unwrap()[0].id;
    let other = f.probe("other=after_empty").id;
    let attendant: Arc<dyn Attendant> = Arc::new(Idle);
    if look.in_full {
        let patience = Duration::from_secs(600);
        f.engine.attend(&[other], patience, &attendant).unwrap();
    }
    if look.is_watched {
        f.probe("table/8");
    }
    let mut vcpu = vcpu_at(0);
    ended::next(&f, &mut vcpu);
    f.set_word(ended::task(0).0 + u64::from(PID), 77);
    vcpu.registers.rip = f.info(id).address.0;
    vcpu.registers.rflags |= RF;
    (vcpu.registers.rbx, vcpu.registers.rbp) = (STACK + 0x40, 0x77);
    let action = f.trap(&mut vcpu);
    let events = f.events();
    for event in &events {
        let pid = event.context.as_ref().map(|context| context.pid);
        let told = (pid, event.task, event.flags);
        let expected = match look.context {
            true => (Some(77), ended::task(0).0, Some(event.registers.rflags)),
            false => (None, 0, None),
        };
        assert_eq!(told, expected, "{place}");
    }
    let info = f.info(id);
    let memory = f.bytes_at(STACK - 0x40, 0x100);
    let counts = (info.hits, info.exits, info.missed);
    (action, vcpu.registers, events, counts, memory)
}

#[test]
fn a_plain_site_s_hit_comes_to_what_it_comes_to_when_looked_at_in_full() {
    for place in [
        "plain",
        "plain+0xa",
        "plain+0xd",
        "plain+0xe",
        "traced+0x5",
        "traced+0x8",
        "traced+0xb",
        "traced+0xc",
        "memory",
        "memory+0x3",
        "memory+0xc",
        "memory+0xe",
        "stepped",
        "copied",
        "copied+0x2",
        "framed+0x5",
    ] {
        for (is_watched, context) in [(false, false), (false, true), (true, false), (true, true)] {
            let hit = |in_full| {
                let look = Look {
                    in_full,
                    is_watched,
                    context,
                };
                hit_of(place, look)
            };
            assert_eq!(hit(false), hit(true), "{place}");
        }
    }
}

#[test]
fn a_site_is_plain_unless_its_probe_asks_for_more_than_registers_and_context() {
    let is_plain = |ask: fn(&mut Options)| {
        let f = Fixture::new();
        let mut spec = spec("plain");
        ask(&mut spec.options);
        let id = f.engine.register(&f.guest(), &[spec]).unwrap()[0].id;
        let at = f.info(id).address;
        f.engine.table().plain_site(at).is_some()
    };
    assert!(is_plain(|_| {}));
    assert!(is_plain(|options| options.context = true));
    assert!(is_plain(|options| options.capture = Capture::Count));
    assert!(!is_plain(|options| options.stack = 1));
    assert!(!is_plain(|options| {
        options.actions = [HitAction::Override { value: 1 }].into();
    }));
}

#[test]
fn the_monitor_is_told_the_line_of_the_caches_that_a_hit_looks_at_first() {
    const LINE: usize = 64;
    let f = Fixture::new();
    f.probe("plain");
    let at = GuestVirtAddr(TEXT + 9);
    let table = f.engine.table();
    let site = ptr::from_ref(table.plain_site(at).unwrap()).addr();
    let first = f.engine.first_look(at).unwrap();
    assert_eq!(first / LINE, site / LINE);
}

#[test]
fn probes_at_one_address_have_their_own_counters() {
    let f = Fixture::new();
    let one = f.probe("plain").id;
    f.trap(&mut vcpu_at(9));
    let two = f.probe("other=plain").id;
    f.trap(&mut vcpu_at(9));
    assert_eq!((f.hit_count(one), f.hit_count(two)), (2, 1));
}

#[test]
fn a_breakpoint_that_is_not_ours_is_given_back() {
    let f = Fixture::new();
    f.probe("plain");
    assert_eq!(f.trap(&mut vcpu_at(0x11)), Action::Reinject);
    assert_eq!(f.events().len(), 0);
}

#[test]
fn user_mode_never_hits_a_probe() {
    let f = Fixture::new();
    f.probe("plain");
    let mut vcpu = vcpu_at(0);
    vcpu.control.cpl = 3;
    vcpu.registers.rip = PHYS + 9;
    assert_eq!(f.trap(&mut vcpu), Action::Reinject);
    assert_eq!(f.events().len(), 0);
}

#[test]
fn a_trap_of_a_probe_removed_meanwhile_is_resumed() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    f.engine.unregister(&f.guest(), &[id]).unwrap();
    let mut vcpu = vcpu_at(9);
    let before = vcpu.registers;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers, before);
    assert_eq!(f.events().len(), 0);
}

#[test]
fn identity_mapped_text_hits_and_goes_on_where_it_runs() {
    let f = Fixture::new();
    f.probe("memory+0xe");
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rip = PHYS + 0x24e;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(f.events()[0].registers.rip, TEXT + 0x24e);
    assert_eq!(
        vcpu.registers.rip, PHYS,
        "the call is relative to where the code runs"
    );
    assert_eq!(f.word(STACK - 8), PHYS + 0x253);
}

#[test]
fn an_instruction_that_must_be_stepped_is_there_for_the_step_only() {
    let f = Fixture::new();
    f.probe("traced+0x8");
    let mut vcpu = vcpu_at(0x48);
    vcpu.registers.rdi = 0x9000;
    assert_eq!(f.trap(&mut vcpu), ALONE);
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    assert_eq!(f.byte(0x48), 0xf0);
    vcpu.registers.rip += 3;
    assert_eq!(
        f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done),
        Action::Resume
    );
    assert_eq!(f.byte(0x48), 0xcc);
    assert_eq!(f.events().len(), 1);
}

/// A step, with all other vCPUs stopped, that runs on to an offset of the text.
fn run_to(offset: u64) -> Action {
    Action::Step(Step {
        alone: true,
        run_to: Some(GuestVirtAddr(TEXT + offset)),
        ..Step::default()
    })
}

#[test]
fn a_repeated_string_instruction_runs_through_all_its_rounds() {
    let f = Fixture::new();
    f.probe("traced+0x6");
    let mut vcpu = vcpu_at(0x46);
    (vcpu.registers.rcx, vcpu.registers.rsi, vcpu.registers.rdi) = (3, 0x9000, 0x9100);
    assert_eq!(f.trap(&mut vcpu), run_to(0x48));
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    (vcpu.registers.rcx, vcpu.registers.rip) = (0, TEXT + 0x48);
    let ended = f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    assert_eq!(ended, Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + 0x48);
    assert_eq!(f.events().len(), 1);
    assert_eq!(f.byte(0x46), 0xcc);
}

#[test]
fn with_no_debug_register_left_a_repeated_string_instruction_is_stepped_in_rounds() {
    let f = Fixture::new();
    f.register(&["table/1", "table+0x1/1", "table+0x2/1", "table+0x3/1"])
        .unwrap();
    f.probe("traced+0x6");
    let mut vcpu = vcpu_at(0x46);
    (vcpu.registers.rcx, vcpu.registers.rsi, vcpu.registers.rdi) = (3, 0x9000, 0x9100);
    assert_eq!(f.trap(&mut vcpu), run_to(0x48));
    for left in [2, 1] {
        assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
        vcpu.registers.rcx = left;
        assert_eq!(
            f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done),
            run_to(0x48)
        );
    }
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    vcpu.registers.rip += 2;
    assert_eq!(
        f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done),
        Action::Resume
    );
    assert_eq!(f.events().len(), 1);
    assert_eq!(f.byte(0x46), 0xcc);
}

#[test]
fn a_probe_removed_before_its_step_leaves_nothing_to_step() {
    let f = Fixture::new();
    let id = f.probe("traced+0x8").id;
    let mut vcpu = vcpu_at(0x48);
    assert_eq!(f.trap(&mut vcpu), ALONE);
    f.engine.unregister(&f.guest(), &[id]).unwrap();
    assert!(!f.engine.lift_for_step(&*f.memory, &mut vcpu));
    assert_eq!(f.byte(0x48), 0xf0);
}

#[test]
fn a_probe_removed_during_its_step_is_not_planted_again() {
    let f = Fixture::new();
    let id = f.probe("traced+0x8").id;
    let mut vcpu = vcpu_at(0x48);
    f.trap(&mut vcpu);
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    f.engine.unregister(&f.guest(), &[id]).unwrap();
    vcpu.registers.rip += 3;
    assert_eq!(
        f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done),
        Action::Resume
    );
    assert_eq!(f.byte(0x48), 0xf0);
}

/// Four-level tables that map nothing but address 0x40000000, read-only, in a
/// page of 1 GiB that leads to physical address 0.
fn with_page_tables(f: &Fixture, vcpu: &mut TestVcpu) {
    let entry = |at: u64, value: u64| {
        f.memory
            .write(GuestPhysAddr(at), &value.to_le_bytes())
            .unwrap();
    };
    entry(0x1000, 0x2000 | 0x63);
    entry(0x2008, 0xa1);
    vcpu.control.cr0 = 1 << 31 | 1 << 16;
    vcpu.control.cr3 = 0x1000;
    vcpu.control.efer = 1 << 10;
}

#[test]
fn a_fault_is_raised_at_the_original_address_with_nothing_changed() {
    for (place, offset, rbx, address, error_code) in [
        // push to where nothing is mapped
        ("plain", 9, 0, STACK - 8, 0b10),
        // mov to a read-only page, and to none
        ("memory", 0x240, 0x4000_0000, 0x4000_0000, 0b11),
        ("memory", 0x240, 0x8000_0000, 0x8000_0000, 0b10),
        // mov from %gs:0x10
        ("memory+0x3", 0x243, 0, 0x5010, 0b00),
        // rep movsb, which is stepped: its source
        ("traced+0x6", 0x46, 0, 0x7000, 0b00),
        // lock incl 0x10(%rip)
        ("stepped", 0x280, 0, TEXT + 0x297, 0b10),
        // bt %rax,(%rbx): the bit's distance is in RAX
        ("stepped+0x7", 0x287, 0x7fff_f000, 0x8000_0000, 0b00),
        ("stepped+0x7", 0x287, 0x8000_0000, 0x8000_1000, 0b00),
    ] {
        let f = Fixture::new();
        let id = f.probe(place).id;
        let mut vcpu = vcpu_at(offset);
        with_page_tables(&f, &mut vcpu);
        vcpu.control.gs_base = 0x5000;
        vcpu.registers.rbx = rbx;
        (vcpu.registers.rcx, vcpu.registers.rsi, vcpu.registers.rax) = (1, 0x7000, 0x8000);
        vcpu.registers.rdi = 0x7000;
        let before = vcpu.registers;
        let address = GuestVirtAddr(address);
        let fault = Action::PageFault {
            address,
            error_code,
        };
        assert_eq!(f.trap(&mut vcpu), fault, "{place}");
        assert_eq!(vcpu.registers, before, "{place}");
        assert_eq!(f.hit_count(id), 1);
    }
}

#[test]
fn an_instruction_that_only_the_cpu_can_judge_is_stepped() {
    // A non-canonical address; and a page that isn't dirty yet, with write protection off.
    for rbx in [1 << 63, 0x4000_0000] {
        let f = Fixture::new();
        f.probe("memory");
        let mut vcpu = vcpu_at(0x240);
        with_page_tables(&f, &mut vcpu);
        vcpu.control.cr0 = 1 << 31;
        vcpu.registers.rbx = rbx;
        let before = vcpu.registers;
        assert_eq!(f.trap(&mut vcpu), ALONE);
        assert_eq!(vcpu.registers, before);
    }
}

#[test]
fn hlt_halts_and_sti_holds_interrupts_back() {
    let f = Fixture::new();
    f.register(&["traced+0xb", "traced+0xc"]).unwrap();
    let mut vcpu = vcpu_at(0x4b);
    assert_eq!(f.trap(&mut vcpu), Action::Halt);
    assert_eq!(vcpu.registers.rip, TEXT + 0x4c);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert!(vcpu.interrupt_shadow && vcpu.registers.rflags & IF != 0);
    vcpu.registers.rip = TEXT + 0x4c;
    f.trap(&mut vcpu);
    assert!(!vcpu.interrupt_shadow, "interrupts were enabled already");
    vcpu.interrupt_shadow = true;
    vcpu.registers.rip = TEXT + 0x4c;
    f.trap(&mut vcpu);
    assert!(!vcpu.interrupt_shadow, "a shadow lasts for one instruction");
}

#[test]
fn no_hit_is_lost_while_other_probes_come_and_go() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 500;
    let f = Fixture::new();
    let stays = f.probe("plain").id;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    let action = f.trap(&mut vcpu_at(9));
                    assert_eq!(action, Action::Resume);
                }
            });
        }
        for _ in 0..100 {
            let other = f.probe("other=plain").id;
            let third = f.probe("traced").id;
            f.engine.unregister(&f.guest(), &[other, third]).unwrap();
        }
    });
    assert_eq!(f.hit_count(stays), THREADS * CALLS);
    assert_eq!((f.byte(9), f.byte(0x45)), (0xcc, 0x53));
}
