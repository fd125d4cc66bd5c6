//! What the guest reports of exceptions of instructions in the arena.

use guest_kernel::blacklist::Reason;
use guest_state::testing::TestVcpu;
use guest_state::{Action, ControlRegisters, GuestVirtAddr};

use super::fixture::{Fixture, Function, PHYS, STACK, TEXT, blacklist, spec, vcpu_at};
use crate::probe::{Optimization, ProbeId, Switch};

const INT3: u8 = 0xcc;
const TRIED: u64 = 0x400;
const DIE: u64 = 0x440;
const DIE_ADDR: u64 = 0x450;
const SHOWS: u64 = 0x460;
const COPIES: u64 = 0x480;
const MORE: &[Function] = &[
    // mov (%rdi),%rdi; call *0x10(%rax); ret
    (TRIED, "tried", b"\x48\x8b\x3f\xff\x50\x10\xc3"),
    // Each: push %rbp; ret
    (DIE, "__die", b"\x55\xc3"),
    (DIE_ADDR, "die_addr", b"\x55\xc3"),
    // nop; call copy_from_kernel_nofault; ret
    (SHOWS, "show_opcodes", b"\x90\xe8\x1a\0\0\0\xc3"),
    (COPIES, "copy_from_kernel_nofault", b"\xc3"),
];
/// The call in `show_opcodes`.
const COPY: u64 = SHOWS + 1;
/// Addresses of saved registers, and of the bytes to be shown.
const SAVED: u64 = 0x7000;
const SHOWN: u64 = 0x7800;

fn with_oopses() -> Fixture {
    // The kernel allows no kprobe in it.
    let places = [(DIE, 2, Reason::KprobeBlacklist)];
    Fixture::with_jumps_and_functions(MORE, |kernel| kernel.blacklist = blacklist(&places))
}

fn jump(f: &Fixture, place: &str) -> ProbeId {
    let id = f.probe(place).id;
    f.optimize();
    assert_eq!(f.info(id).optimization, Optimization::Optimized, "{place}");
    id
}

/// Returns the address at which the instruction at an offset of the text is executed, which is the first of a jump's
/// region or inside it.
fn copy(f: &Fixture, jump: u64, offset: u64) -> u64 {
    let table = f.engine.table();
    let site = table.site(GuestVirtAddr(TEXT + jump)).unwrap();
    let copy = site.jump().unwrap().copy((offset - jump) as u8);
    copy.unwrap().0
}

/// Makes the kernel enter `function` with this saved RIP. Returns the saved RIP and RSP when it goes on.
fn told(f: &Fixture, function: u64, rip: u64) -> (u64, u64) {
    f.set_word(SAVED + 0x80, rip);
    f.set_word(SAVED + 0x98, 0x1000);
    let mut vcpu = vcpu_at(function);
    vcpu.registers.rsi = SAVED;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + function + 1);
    assert_eq!(vcpu.registers.rsp, STACK - 8, "push %rbp");
    (f.word(SAVED + 0x80), f.word(SAVED + 0x98))
}

fn waits(f: &Fixture) -> [bool; 3] {
    let table = f.engine.table();
    [DIE, DIE_ADDR, COPY].map(|at| {
        // There is an int3 also if no function is there.
        table.site(GuestVirtAddr(TEXT + at)).is_some() && f.byte(at) == INT3
    })
}

#[test]
fn oopses_are_waited_for_from_the_first_jump_to_the_last_armed_probe() {
    let f = with_oopses();
    let probes = f.register(&["framed", "stepped"]);
    let ids: Vec<_> = probes.unwrap().iter().map(|probe| probe.id).collect();
    assert_eq!(waits(&f), [false; 3]);
    f.optimize();
    assert_eq!(waits(&f), [true; 3]);
    f.engine
        .switch(&f.guest(), None, Switch::Optimize(false))
        .unwrap();
    assert_eq!(waits(&f), [true; 3], "a task may still be in a detour");
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert_eq!(waits(&f), [false; 3]);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    f.engine
        .switch(&f.guest(), None, Switch::Optimize(true))
        .unwrap();
    f.optimize();
    assert_eq!(waits(&f), [true; 3]);
    f.unregister(&ids);
    assert_eq!(waits(&f), [false; 3]);
    assert!(!f.engine.debugging().breakpoints);
    assert_eq!(f.engine.oops_note(), None);
}

#[test]
fn a_kernel_without_the_functions_is_told_of() {
    let f = Fixture::with_jumps(|_| {});
    jump(&f, "framed");
    let note = f.engine.oops_note().unwrap();
    assert!(note.contains("__die, die_addr, show_opcodes"), "{note}");
    let f = Fixture::with_jumps_and_functions(&MORE[1..3], |_| {});
    jump(&f, "framed");
    assert_eq!(waits(&f), [true, true, false]);
}

#[test]
fn saved_registers_tell_where_the_instruction_was() {
    let f = with_oopses();
    let id = jump(&f, "tried");
    for function in [DIE, DIE_ADDR] {
        for at in [TRIED, TRIED + 3] {
            let rip = copy(&f, TRIED, at);
            assert_eq!(told(&f, function, rip), (TEXT + at, 0x1000));
        }
        let text = TEXT + TRIED;
        assert_eq!(told(&f, function, text), (text, 0x1000), "no detour");
    }
    assert_eq!(f.info(id).exits, 0);
    // The exception is in the slot of a breakpoint.
    f.unregister(&[id]);
    let slot = f.probe("copied%post");
    jump(&f, "framed");
    let mut vcpu = vcpu_at(0x2c0);
    f.trap(&mut vcpu);
    assert_ne!(vcpu.registers.rip, slot.address.0);
    assert_eq!(told(&f, DIE, vcpu.registers.rip), (slot.address.0, 0x1000));
}

#[test]
fn a_call_that_faults_when_it_has_pushed_its_return_address_has_not() {
    let f = with_oopses();
    jump(&f, "tried");
    let call = copy(&f, TRIED, TRIED + 3);
    assert_eq!(told(&f, DIE, call), (TEXT + TRIED + 3, 0x1000));
    assert_eq!(told(&f, DIE, call + 5), (TEXT + TRIED + 3, 0x1008));
}

#[test]
fn memory_that_holds_no_saved_registers_stays_as_it_is() {
    let f = with_oopses();
    jump(&f, "framed");
    for registers in [TEXT, u64::MAX - 0x40, 0x7fff_ffff_0000] {
        let mut vcpu = vcpu_at(DIE);
        vcpu.registers.rsi = registers;
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
        assert_eq!(vcpu.registers.rip, TEXT + DIE + 1);
    }
}

/// Page tables that map the first GiB to itself, and the first pages of the text.
fn map(f: &Fixture) -> ControlRegisters {
    const ROOT: u64 = 0x2000;
    const TABLE: u64 = 0x63;
    const LARGE: u64 = 0xe3;
    let at = |shift: u64| 8 * (TEXT >> shift & 0x1ff);
    for (word, entry) in [
        (ROOT, 0x3000 | TABLE),
        (0x3000, LARGE),
        (ROOT + at(39), 0x4000 | TABLE),
        (0x4000 + at(30), 0x5000 | TABLE),
        (0x5000 + at(21), 0x6000 | TABLE),
        (0x6000 + at(12), PHYS | TABLE),
    ] {
        f.set_word(word, entry);
    }
    ControlRegisters {
        cr0: 0x8001_0001,
        cr3: ROOT,
        cr4: 0x20,
        efer: 0xd00,
        ..TestVcpu::default().control
    }
}

/// Makes the kernel copy text from an address.
fn copies(f: &Fixture, from: u64, len: u64) -> TestVcpu {
    let mut vcpu = vcpu_at(COPY);
    vcpu.control = map(f);
    vcpu.registers.rax = 7;
    vcpu.registers.rdi = SHOWN;
    vcpu.registers.rsi = from;
    vcpu.registers.rdx = len;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    vcpu
}

#[test]
fn the_text_that_is_shown_is_the_original() {
    let f = with_oopses();
    let text = f.bytes_at(PHYS + 0x320, 64);
    jump(&f, "framed");
    assert_ne!(f.bytes_at(PHYS + 0x320, 64), text);
    let vcpu = copies(&f, TEXT + 0x320, 64);
    assert_eq!(
        (vcpu.registers.rip, vcpu.registers.rax),
        (TEXT + COPY + 5, 0)
    );
    assert_eq!(f.bytes_at(SHOWN, 64), text);
}

#[test]
fn the_kernel_copies_text_itself_that_is_unpatched_or_unreadable() {
    let f = with_oopses();
    jump(&f, "framed");
    for (from, len) in [
        (TEXT, 64),
        (TEXT + 0x320, 65),
        (TEXT + 0x320, u64::MAX),
        (TEXT + 0xff0, 64),
    ] {
        let vcpu = copies(&f, from, len);
        assert_eq!(
            (vcpu.registers.rip, vcpu.registers.rax),
            (TEXT + COPIES, 7),
            "{len} at {from:#x}"
        );
    }
    assert_eq!(f.bytes_at(SHOWN, 64), [0; 64]);
}

#[test]
fn a_user_s_probe_where_oopses_are_waited_for_is_hit_as_ever() {
    let f = with_oopses();
    let own = f
        .engine
        .register(&f.guest(), &[spec("die_addr"), spec("framed")]);
    let own = own.unwrap().remove(0).id;
    f.optimize();
    assert_ne!(f.info(own).optimization, Optimization::Optimized);
    let at = TEXT + 0x340;
    assert_eq!(told(&f, DIE_ADDR, at), (at, 0x1000));
    assert_eq!(f.hit_count(own), 1);
    f.unregister(&[own]);
    assert_eq!(waits(&f), [true; 3]);
}
