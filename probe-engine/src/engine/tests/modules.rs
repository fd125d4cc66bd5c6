//! Probes in modules, which come and go.

use std::sync::Arc;

use guest_kernel::modules::ModuleReader;
use guest_kernel::modules::synthetic::{CODE, Guest, MODULE, Version, btf};
use guest_state::Action;

use super::fixture::{Fixture, TEXT, image, vcpu_at};
use crate::probe::{ProbeState, Strategy, Switch};

const DO_INIT: u64 = 0x300;
const FREE_INIT: u64 = 0x310;
const FREE: u64 = 0x320;
const INIT_CODE: u64 = guest_kernel::modules::synthetic::INIT_CODE;

/// A kernel whose module `ext4` isn't in the list of modules yet.
fn fixture() -> (Fixture, Guest) {
    let f = Fixture::with(image(), |kernel| {
        let reader = ModuleReader::new(&btf(Version::V6_12), &kernel.symbols);
        kernel.modules = Ok(reader.unwrap());
    });
    let guest = Guest::within(Arc::clone(&f.memory), Version::V6_12);
    guest.link(&[]);
    // push %rbp at both functions' entries.
    guest.write(CODE, &[0x55]);
    guest.write(INIT_CODE + 0x10, &[0x55]);
    (f, guest)
}

/// Makes the guest enter one of its functions, with these arguments.
fn enter(f: &Fixture, offset: u64, arguments: [u64; 3]) {
    let mut vcpu = vcpu_at(offset);
    let r = &mut vcpu.registers;
    [r.rdi, r.rsi, r.rdx] = arguments;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
}

fn byte(f: &Fixture, at: u64) -> u8 {
    f.bytes_at(at, 1)[0]
}

/// The first bytes of the functions at which the engine may have milestones for modules.
fn milestones(f: &Fixture) -> [u8; 3] {
    [DO_INIT, FREE_INIT, FREE].map(|offset| f.byte(offset))
}

#[test]
fn a_probe_waits_for_its_module_and_goes_and_comes_with_it() {
    let (f, guest) = fixture();
    let probe = f.probe("ext4:ext4_read");
    assert_eq!(probe.state, ProbeState::Pending);
    assert_eq!(
        (probe.address.0, probe.module.as_deref()),
        (0, Some("ext4"))
    );
    assert_eq!(probe.name, "ext4:ext4_read+0x0");
    let state = || f.info(probe.id).state;
    for round in 1..3 {
        guest.link(&[MODULE]);
        enter(&f, DO_INIT, [MODULE, 0, 0]);
        let info = f.info(probe.id);
        assert_eq!((info.state, info.address.0), (ProbeState::Armed, CODE));
        assert_eq!(info.strategy, Strategy::Emulate);
        assert_eq!(byte(&f, CODE), 0xcc);
        let mut vcpu = vcpu_at(0);
        vcpu.registers.rip = CODE;
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
        assert_eq!(
            (vcpu.registers.rip, f.hit_count(probe.id)),
            (CODE + 1, round)
        );
        enter(&f, FREE, [MODULE, 0, 0]);
        assert_eq!((state(), byte(&f, CODE)), (ProbeState::Gone, 0x55));
    }
    assert_eq!(f.events().len(), 2, "milestones are no hits");
}

#[test]
fn a_loaded_module_is_probed_at_once_by_name_or_address() {
    let (f, guest) = fixture();
    guest.link(&[MODULE]);
    let probe = f.probe("ext4:ext4_read");
    assert_eq!((probe.state, byte(&f, CODE)), (ProbeState::Armed, 0xcc));
    let by_address = f.probe("0x2045");
    assert_eq!(
        (
            by_address.symbol.as_str(),
            by_address.offset,
            by_address.instruction.as_str()
        ),
        ("ext4_write", 5, "nop")
    );
    for (place, word) in [
        ("ext4:no_such", "no function"),
        ("ext4:same", "2 functions"),
        ("ext4:ext4_read+0x30", "outside"),
        ("0x2030", "not in the kernel's text"),
    ] {
        let message = f.refusal(place).to_string();
        assert!(message.contains(word), "{message}");
    }
    f.unregister(&[probe.id, by_address.id]);
    assert_eq!((byte(&f, CODE), milestones(&f)), (0x55, [0x55; 3]));
}

#[test]
fn a_probe_of_a_module_s_function_is_behind_its_ftrace_site_and_the_endbr64_before_it() {
    // nopl -42(%rax), which replaces an endbr64 (`gen_endbr_poison` in arch/x86/include/asm/ibt.h)
    const SEALED: [u8; 4] = [0x0f, 0x1f, 0x40, 0xd6];
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    for (first, site, offset) in [(&SEALED[..], 4, 9), (&ENDBR, 4, 9), (&[], 0, 5)] {
        let (f, guest) = fixture();
        guest.write(CODE, first);
        guest.write(CODE + site, &[0x0f, 0x1f, 0x44, 0, 0, 0x55]);
        guest.put(0x5000, CODE + site);
        guest.pointer("ftrace_callsites", 0x5000, 1);
        guest.link(&[MODULE]);
        let probe = f.probe("ext4:ext4_read");
        assert_eq!(
            (probe.offset, probe.instruction.as_str()),
            (offset, "push %rbp")
        );
    }
}

#[test]
fn init_text_of_a_module_is_gone_when_its_start_is_done() {
    let (f, guest) = fixture();
    let ids = f.register(&["ext4:init_module", "ext4:ext4_read"]).unwrap();
    let [init, core] = [0, 1].map(|i: usize| ids[i].id);
    guest.link(&[MODULE]);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    assert_eq!(byte(&f, INIT_CODE + 0x10), 0xcc);
    // The kernel's own init text belongs to no module.
    enter(&f, FREE_INIT, [0, INIT_CODE, INIT_CODE + 0x40]);
    assert_eq!(f.info(init).state, ProbeState::Armed);
    enter(&f, FREE_INIT, [MODULE, INIT_CODE, INIT_CODE + 0x40]);
    assert_eq!(byte(&f, INIT_CODE + 0x10), 0x55);
    let states = [init, core].map(|id| f.info(id).state);
    assert_eq!(states, [ProbeState::Gone, ProbeState::Armed]);
}

#[test]
fn the_engine_waits_for_modules_only_while_a_probe_is_in_one() {
    let (f, _guest) = fixture();
    let plain = f.probe("plain").id;
    assert_eq!(milestones(&f), [0x55; 3]);
    let ids = f.register(&["ext4:ext4_read", "xfs:xfs_read"]).unwrap();
    assert_eq!(milestones(&f), [0xcc; 3]);
    f.unregister(&[ids[0].id]);
    assert_eq!(milestones(&f), [0xcc; 3]);
    f.unregister(&[ids[1].id]);
    assert_eq!(milestones(&f), [0x55; 3]);
    f.unregister(&[plain]);
    assert!(!f.engine.debugging().breakpoints);
}

#[test]
fn a_probe_on_a_milestone_is_hit_and_outlives_it() {
    let (f, guest) = fixture();
    let own = f.probe("do_init_module").id;
    let waits = f.probe("ext4:ext4_read").id;
    guest.link(&[MODULE]);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    assert_eq!(
        (f.hit_count(own), f.info(waits).state),
        (1, ProbeState::Armed)
    );
    f.unregister(&[waits]);
    assert_eq!(milestones(&f), [0xcc, 0x55, 0x55]);
    let mut vcpu = vcpu_at(DO_INIT);
    f.trap(&mut vcpu);
    assert_eq!(
        (f.hit_count(own), vcpu.registers.rip),
        (2, TEXT + DO_INIT + 1)
    );
}

#[test]
fn a_disarmed_probe_on_a_milestone_reports_nothing() {
    let (f, guest) = fixture();
    let own = f.probe("do_init_module%both").id;
    f.probe("ext4:ext4_read");
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    assert_eq!(milestones(&f), [0xcc; 3]);
    guest.link(&[MODULE]);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    assert_eq!((f.details(), f.info(own).exits), (vec![], 0));
    assert_eq!(byte(&f, CODE), 0x55);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    assert_eq!(byte(&f, CODE), 0xcc);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    assert_eq!(f.details().len(), 2);
}

#[test]
fn a_disabled_probe_waits_and_is_placed_without_a_breakpoint() {
    let (f, guest) = fixture();
    let id = f.probe("ext4:ext4_read").id;
    f.enable(id, false);
    guest.link(&[MODULE]);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    assert_eq!(
        (f.info(id).state, byte(&f, CODE)),
        (ProbeState::Disabled, 0x55)
    );
    f.enable(id, true);
    assert_eq!(
        (f.info(id).state, byte(&f, CODE)),
        (ProbeState::Armed, 0xcc)
    );
}

#[test]
fn a_module_without_the_function_says_why_its_probe_still_waits() {
    let (f, guest) = fixture();
    let id = f.probe("ext4:no_such").id;
    guest.link(&[MODULE]);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    let info = f.info(id);
    assert_eq!(info.state, ProbeState::Pending);
    assert!(info.reason.contains("no function"), "{}", info.reason);
}

#[test]
fn a_kernel_whose_modules_cannot_be_found_refuses_them() {
    let message = Fixture::new().refusal("ext4:ext4_read").to_string();
    assert!(message.contains("only its symbols are known"), "{message}");
}

#[test]
fn a_module_that_cannot_be_read_says_why_its_probe_still_waits() {
    let (f, guest) = fixture();
    let id = f.probe("ext4:ext4_read").id;
    guest.put(MODULE + 80, 1 << 40);
    enter(&f, DO_INIT, [MODULE, 0, 0]);
    let info = f.info(id);
    assert_eq!(info.state, ProbeState::Pending);
    assert!(info.reason.contains("can't be read"), "{}", info.reason);
}
