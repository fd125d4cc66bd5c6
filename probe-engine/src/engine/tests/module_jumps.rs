//! Jumps in modules, which come and go.

use std::sync::Arc;

use guest_kernel::modules::ModuleReader;
use guest_kernel::modules::synthetic::{DATA, Guest, MODULE, Version, btf};
use guest_state::testing::{TestGuest, TestVcpu};
use guest_state::x86_64::control::{ControlRegisters, cr0, cr4, efer};
use guest_state::{Action, GuestMemory, GuestPhysAddr, GuestVirtAddr, TrapHandler};

use super::fixture::{ALONE, Fixture, PHYS, STACK, TABLE, TEXT, spec, vcpu_at};
use crate::probe::{NoJump, Optimization, ProbeId, ProbeInfo, ProbeState};

const FREE_INIT: u64 = 0x310;
const FREE: u64 = 0x320;
const DO_INIT: u64 = 0x300;
/// Where the module's text is, and the two pages of memory that it lies in.
const SPACE: u64 = 0xffff_ffff_c000_0000;
const PAGES: [u64; 2] = [0x30_0000, 0x38_0000];
/// Page tables.
const ROOT: u64 = 0x2_0000;
const LOW: u64 = 0x2_1000;
const DIRECTORY: u64 = 0x2_2000;
const LEAVES: u64 = 0x2_3000;
/// Present, writable, accessed, dirty; the same of a large page.
const ENTRY: u64 = 0x63;
const LARGE: u64 = 0xe3;
/// `mov $1,%eax; ret`
const FIVE: [u8; 5] = [0xb8, 1, 0, 0, 0];
const JUMP: u8 = 0xe9;
const INT3: u8 = 0xcc;

/// A kernel with paging, and a module at an address that modules have.
struct Paged {
    f: Fixture,
    guest: Guest,
}

impl Paged {
    fn new() -> Self {
        let f = Fixture::with_jumps(|kernel| {
            let reader = ModuleReader::new(&btf(Version::V6_12), &kernel.symbols);
            kernel.modules = Ok(reader.unwrap());
        });
        let guest = Guest::within(Arc::clone(&f.memory), Version::V6_12);
        for (at, entry) in [
            (ROOT, LOW | ENTRY),
            (ROOT + 511 * 8, (PHYS + TABLE) | ENTRY),
            (LOW, LARGE),
            (PHYS + TABLE + 511 * 8, DIRECTORY | ENTRY),
            (DIRECTORY, LEAVES | ENTRY),
            (LEAVES, PAGES[0] | ENTRY),
            (LEAVES + 8, PAGES[1] | ENTRY),
        ] {
            guest.put(at, entry);
        }
        // The functions in the module's symbols, and their offsets.
        let places = [
            (1, 0x40),
            (2, 0),
            (5, 0x60),
            (6, 0xffb),
            (7, 0xff0),
            (8, 0x100),
        ];
        for (symbol, offset) in places {
            guest.put(DATA + 0x100 + symbol * 24 + 8, SPACE + offset);
            guest.put(DATA + 0x100 + symbol * 24 + 16, 0x10);
        }
        let paged = Self { f, guest };
        paged.load(&FIVE);
        paged.settle(true);
        paged
    }

    /// Loads the module's text, with these bytes at each function.
    fn load(&self, code: &[u8]) {
        self.guest.write(PAGES[0], &[0x90; 0x1000]);
        self.guest.write(PAGES[1], &[0x90; 0x1000]);
        for offset in [0, 0x40, 0x60] {
            self.guest.write(PAGES[0] + offset, code);
        }
        // It begins in the first page and ends in the second.
        self.guest
            .write(PAGES[0] + 0xffb, &[0x48, 0x89, 0xe5, 0x90, 0x41]);
        self.guest.write(PAGES[1], &[0x55, 0xc3]);
        self.guest.link(&[MODULE]);
    }

    /// Sets whether its init function has returned.
    fn settle(&self, done: bool) {
        let init = match done {
            true => (0, 0),
            false => (SPACE + 0x1800, 0x40),
        };
        self.guest.texts([(SPACE, 0x1100), init]);
        let state: u32 = if done { 0 } else { 1 };
        self.guest.write(MODULE, &state.to_le_bytes());
    }

    fn vcpu(&self, at: u64) -> TestVcpu {
        let mut vcpu = vcpu_at(0);
        vcpu.registers.rip = at;
        vcpu.registers.rsp = STACK;
        vcpu.control = ControlRegisters {
            cr0: cr0::PE | cr0::PG | cr0::WP,
            cr3: ROOT,
            cr4: cr4::PAE,
            efer: efer::LME | efer::LMA,
            ..vcpu.control
        };
        vcpu
    }

    fn stopped(&self) -> TestGuest<'_> {
        self.f.guest_with(&self.vcpu(TEXT))
    }

    fn probe(&self, place: &str) -> ProbeInfo {
        let engine = &self.f.engine;
        engine
            .register(&self.stopped(), &[spec(place)])
            .unwrap()
            .remove(0)
    }

    /// Makes the waiting probes jumps. Returns how many became jumps.
    fn optimize(&self) -> usize {
        let prepared = self.f.engine.prepare_jumps(&*self.f.memory);
        self.f
            .engine
            .commit_jumps(&self.stopped(), &prepared)
            .unwrap()
    }

    fn jump(&self, place: &str) -> ProbeId {
        let id = self.probe(place).id;
        self.optimize();
        assert_eq!(
            self.f.info(id).optimization,
            Optimization::Optimized,
            "{place}"
        );
        id
    }

    fn why_not(&self, place: &str) -> NoJump {
        let id = self.probe(place).id;
        self.optimize();
        match self.f.info(id).optimization {
            Optimization::Not(why) => why,
            other => panic!("{place}: {other:?}"),
        }
    }

    /// Makes a vCPU enter a function of the kernel's with the module as its first argument.
    fn enter(&self, offset: u64) -> (TestVcpu, Action) {
        let mut vcpu = self.vcpu(TEXT + offset);
        vcpu.registers.rdi = MODULE;
        let action = self.f.trap(&mut vcpu);
        (vcpu, action)
    }

    fn text(&self, offset: u64) -> Vec<u8> {
        self.f.bytes_at(PAGES[0] + offset, 5)
    }
}

#[test]
fn a_probe_in_a_module_becomes_a_jump_in_reach_of_the_arena() {
    let m = Paged::new();
    let id = m.jump("ext4:ext4_read");
    let text = m.text(0);
    assert_eq!(text[0], JUMP);
    let by = i32::from_le_bytes(text[1..].try_into().unwrap());
    let target = GuestVirtAddr(SPACE + 5).wrapping_add(i64::from(by).cast_unsigned());
    assert_eq!(m.f.engine.arena.detour_at(target), Some(0));
    m.f.engine.unregister(&m.stopped(), &[id]).unwrap();
    assert_eq!(m.text(0), FIVE);
}

#[test]
fn a_return_probe_in_a_module_becomes_a_jump() {
    let m = Paged::new();
    m.jump("ext4:ext4_write%return");
    assert_eq!(m.text(0x40)[0], JUMP);
}

#[test]
fn a_module_that_is_starting_has_breakpoints_until_it_has_started() {
    let m = Paged::new();
    m.settle(false);
    let id = m.probe("ext4:ext4_read").id;
    for _ in 0..3 {
        assert_eq!(m.optimize(), 0);
        assert_eq!(m.f.info(id).optimization, Optimization::Waiting);
        assert!(
            m.f.engine.has_waiting(),
            "nobody else tells when it has started"
        );
    }
    assert_eq!(m.enter(FREE_INIT).1, Action::Resume);
    m.settle(true);
    assert_eq!(m.optimize(), 1);
    assert_eq!(m.text(0)[0], JUMP);
}

#[test]
fn jumps_leave_the_text_of_a_module_that_is_freed_while_nobody_runs() {
    let m = Paged::new();
    let id = m.jump("ext4:ext4_read");
    let (mut vcpu, action) = m.enter(FREE);
    assert_eq!(action, ALONE, "all other vCPUs stand still");
    assert_eq!(m.text(0)[0], JUMP);
    assert!(
        !m.f.engine.before_step(&mut vcpu, &*m.f.memory),
        "there is nothing to step"
    );
    assert_eq!(
        (m.text(0), vcpu.registers.rip),
        (FIVE.to_vec(), TEXT + FREE)
    );
    assert_eq!(m.f.info(id).state, ProbeState::Gone);
    // The vCPU comes to the breakpoint once more, and passes it.
    assert_eq!(m.f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + FREE + 1);
    assert_eq!(m.optimize(), 0);
}

#[test]
fn a_module_that_comes_back_to_the_same_place_has_a_new_jump() {
    let m = Paged::new();
    let id = m.jump("ext4:ext4_read");
    for code in [[0xb8, 7, 0, 0, 0], FIVE, FIVE] {
        let (mut vcpu, _) = m.enter(FREE);
        m.f.engine.before_step(&mut vcpu, &*m.f.memory);
        m.settle(false);
        m.load(&code);
        assert_eq!(m.text(0), code);
        assert_eq!(m.enter(DO_INIT).1, Action::Resume);
        let breakpoint = m.text(0);
        assert_eq!((breakpoint[0], &breakpoint[1..]), (INT3, &code[1..]));
        assert_eq!(m.optimize(), 0);
        m.settle(true);
        assert_eq!(m.optimize(), 1);
        assert_eq!(
            (m.text(0)[0], m.f.info(id).state),
            (JUMP, ProbeState::Armed)
        );
    }
}

#[test]
fn a_jump_that_was_prepared_for_a_module_is_not_made_in_the_next_one() {
    let m = Paged::new();
    let id = m.probe("ext4:ext4_read").id;
    let prepared = m.f.engine.prepare_jumps(&*m.f.memory);
    // As there is no jump, no vCPU has to be stopped.
    assert_eq!(m.enter(FREE).1, Action::Resume);
    m.load(&FIVE);
    assert_eq!(m.enter(DO_INIT).1, Action::Resume);
    let made = m.f.engine.commit_jumps(&m.stopped(), &prepared).unwrap();
    assert_eq!((made, m.text(0)[0]), (0, INT3));
    assert_eq!(m.f.info(id).optimization, Optimization::Waiting);
    assert_eq!(m.optimize(), 1);
}

#[test]
fn what_no_jump_may_overwrite_in_a_module_stays_a_breakpoint() {
    let m = Paged::new();
    // lock incl (%rdi), padded; and the same with the prefix that the kernel writes if there is one
    // CPU
    for (offset, code) in [
        (0x60, [0xf0, 0xff, 0x07, 0x90, 0x90]),
        (0x40, [0x3e, 0xff, 0x07, 0x90, 0x90]),
    ] {
        m.guest.write(PAGES[0] + offset, &code);
        let place = format!("{:#x}", SPACE + offset);
        assert_eq!(m.why_not(&place).kind(), "smp-lock", "{offset:#x}");
    }
    let why = m.why_not(&format!("{:#x}", SPACE + 0xffb));
    assert!(why.to_string().contains("two pages"), "{why}");
}

#[test]
fn a_vcpu_that_meets_a_jump_of_a_freed_module_finds_the_text() {
    let m = Paged::new();
    m.guest.write(PAGES[0], &[0x41, 0x55, 0x49, 0x89, 0xf5]);
    m.jump("ext4:ext4_read");
    assert_eq!((m.text(0)[0], m.text(0)[2]), (JUMP, INT3));
    let mut late = m.vcpu(SPACE + 2);
    let (mut vcpu, _) = m.enter(FREE);
    m.f.engine.before_step(&mut vcpu, &*m.f.memory);
    // The vCPU trapped at the tripwire before.
    assert_eq!(m.f.trap(&mut late), Action::Resume);
    assert_eq!(late.registers.rip, SPACE + 2);
    let mut text = [0; 5];
    m.f.memory.read(GuestPhysAddr(PAGES[0]), &mut text).unwrap();
    assert_eq!(text, [0x41, 0x55, 0x49, 0x89, 0xf5]);
}

#[test]
fn an_address_in_a_module_has_a_name_as_long_as_the_module_is_there() {
    let m = Paged::new();
    let resolve = |at: u64| {
        let found =
            m.f.engine
                .resolve_in_module(&*m.f.memory, GuestVirtAddr(at))?;
        let function = found.function;
        Some((found.module, function.name, found.offset, function.size))
    };
    let read = |offset| Some(("ext4".to_owned(), "ext4_read".to_owned(), offset, 0x40));
    assert_eq!(resolve(SPACE), None, "nobody has looked at the guest yet");
    let id = m.probe("ext4:ext4_read").id;
    // The padding up to the next function belongs to the function.
    assert_eq!(
        (resolve(SPACE), resolve(SPACE + 0x3f)),
        (read(0), read(0x3f))
    );
    let next = resolve(SPACE + 0x40).unwrap();
    assert_eq!((next.1.as_str(), next.2), ("ext4_write", 0));
    assert_eq!((resolve(SPACE + 0x1100), resolve(TEXT)), (None, None));
    // The result is cached until a module comes or goes.
    m.guest.link(&[]);
    assert_eq!(resolve(SPACE), read(0));
    m.enter(FREE);
    assert_eq!(resolve(SPACE), None);
    // Without a probe that makes the engine notice modules, nothing is cached.
    m.guest.link(&[MODULE]);
    m.f.engine.unregister(&m.stopped(), &[id]).unwrap();
    assert_eq!(resolve(SPACE), read(0));
    m.guest.link(&[]);
    assert_eq!(resolve(SPACE), None);
}
