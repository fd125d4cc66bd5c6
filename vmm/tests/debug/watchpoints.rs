//! Watchpoints in tiny guests, on this machine's KVM. One that emulates
//! kernel-mode code sees no hits of it; the doctor's report tells.

use std::sync::{Arc, Mutex};

use crate::{
    report::{on_kvm, on_watchpoints},
    tiny::{self, DATA, IDT_REGISTER, SECOND_START, TRAP_FLAG, Tiny, guest, power_off, word},
};
use guest_state::{
    Access, Action, Debugging, DebuggingError, ExceptionHandler, GuestVirtAddr, Step, StepEnd,
    StoppedGuest, Trap, Watchpoint, WatchpointSet,
};
use iced_x86::code_asm::{al, byte_ptr, dword_ptr, eax, ebx, ecx, ptr, qword_ptr, rax, rsp};

/// The watched words, far from what else the tests use.
const WATCHED: u64 = DATA + 0x800;

fn watch(address: u64, len: u8, access: Access) -> Watchpoint {
    Watchpoint {
        address: GuestVirtAddr(address),
        len,
        access,
    }
}

fn set(tiny: &Tiny, watchpoints: &[Watchpoint]) {
    debug(tiny, false, watchpoints).unwrap();
}

fn debug(tiny: &Tiny, breakpoints: bool, watchpoints: &[Watchpoint]) -> Result<(), DebuggingError> {
    let debugging = Debugging {
        breakpoints,
        watchpoints: watchpoints.to_vec(),
    };
    tiny.vm.stopped(|g| g.set_debugging(&debugging))
}

/// A bit for each watchpoint that was hit.
fn bits(hit: WatchpointSet) -> u64 {
    let of = |index| u64::from(hit.contains(index)) << index;
    (0..4).map(of).sum()
}

/// Runs it with all traps resumed: vCPU, which watchpoints were hit, and the
/// watched word then.
fn hits(tiny: &Tiny) -> Vec<(u32, u64, u64)> {
    let hits = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&hits);
    tiny.run(move |hit| {
        let Trap::Watchpoint(set) = hit.trap else {
            panic!("{:?}", hit.trap)
        };
        let value = word(hit.memory, WATCHED);
        seen.lock()
            .unwrap()
            .push((hit.vcpu.id().0, bits(set), value));
        Action::Resume
    });
    let hits = hits.lock().unwrap();
    assert_eq!(tiny.vm.exits().hardware, hits.len() as u64);
    hits.clone()
}

#[test]
fn each_access_that_is_watched_for_makes_one_hit_after_it() {
    let Some(_report) = on_watchpoints("each_access_that_is_watched_for_makes_one_hit_after_it")
    else {
        return;
    };
    let tiny = guest(1, |a| {
        // Not watched: 8 bytes before and after.
        a.mov(qword_ptr(WATCHED - 8), 1)?;
        a.mov(qword_ptr(WATCHED + 64), 1)?;
        // Writes: all 8 bytes, and the last one.
        a.mov(qword_ptr(WATCHED), 0x11)?;
        a.mov(byte_ptr(WATCHED + 7), 0x22)?;
        // Reads.
        a.mov(rax, ptr(WATCHED))?;
        a.mov(eax, ptr(WATCHED + 16))?;
        a.mov(dword_ptr(WATCHED + 16), 5)?;
        // Two bytes of the second half of a watched word.
        a.mov(byte_ptr(WATCHED + 32), al)?;
        a.mov(byte_ptr(WATCHED + 33), al)?;
        a.mov(byte_ptr(WATCHED + 34), al)?;
        // Reads and writes one, then spans two watchpoints.
        a.inc(dword_ptr(WATCHED + 16))?;
        a.mov(qword_ptr(WATCHED + 41), 0)?;
        power_off(a)
    });
    set(
        &tiny,
        &[
            watch(WATCHED, 8, Access::Write),
            watch(WATCHED + 16, 4, Access::ReadWrite),
            watch(WATCHED + 32, 2, Access::Write),
            watch(WATCHED + 48, 1, Access::Write),
        ],
    );
    let last = 0x2200_0000_0000_0011;
    let expected = [
        (0, 1, 0x11),
        (0, 1, last),
        (0, 2, last),
        (0, 2, last),
        (0, 4, last),
        (0, 4, last),
        (0, 2, last),
        (0, 8, last),
    ];
    assert_eq!(hits(&tiny), expected);
}

#[test]
fn watchpoints_that_were_taken_away_make_no_hits() {
    let Some(_report) = on_kvm("watchpoints_that_were_taken_away_make_no_hits") else {
        return;
    };
    // Sees nothing on any KVM, and the guest goes on unharmed.
    let tiny = guest(1, |a| {
        a.mov(qword_ptr(WATCHED), 1)?;
        power_off(a)
    });
    set(&tiny, &[watch(WATCHED, 8, Access::Write)]);
    let bad = watch(WATCHED + 1, 8, Access::Write);
    let error = debug(&tiny, false, &[bad]);
    assert!(matches!(error, Err(DebuggingError::Misaligned { .. })));
    set(&tiny, &[]);
    assert_eq!(hits(&tiny), []);
    assert_eq!(tiny.vm.stopped(|g| word(g.memory(), WATCHED)), 1);
}

/// The second vCPU waits for INIT and SIPI when the watchpoint is set, and starts
/// in real mode with its registers reset.
#[test]
fn a_vcpu_that_the_guest_starts_later_is_watched_too() {
    const LOW_WATCHED: u64 = 0x6000;
    const DONE: u64 = 0x6100;
    let Some(_report) = on_watchpoints("a_vcpu_that_the_guest_starts_later_is_watched_too") else {
        return;
    };
    let tiny = guest(2, |a| {
        tiny::start_second_vcpu(a)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.cmp(byte_ptr(DONE), 0)?;
        a.je(again)?;
        a.mov(byte_ptr(LOW_WATCHED), 2)?;
        power_off(a)
    });
    // xor ax,ax; mov ds,ax; mov byte [0x6000],1; mov byte [0x6100],1; hlt
    let mut code = vec![0x31, 0xc0, 0x8e, 0xd8, 0xc6, 0x06];
    code.extend((LOW_WATCHED as u16).to_le_bytes());
    code.extend([1, 0xc6, 0x06]);
    code.extend((DONE as u16).to_le_bytes());
    code.extend([1, 0xf4]);
    tiny.vm.stopped(|g| {
        tiny::write(g.memory(), SECOND_START, &code);
        tiny::write(g.memory(), LOW_WATCHED, &[0; 0x200]);
    });
    set(&tiny, &[watch(LOW_WATCHED, 1, Access::Write)]);
    let hits = hits(&tiny);
    assert_eq!(hits, [(1, 1, 0), (0, 1, 0)]);
}

#[test]
fn the_hit_of_a_stepped_instruction_is_told_after_the_step() {
    let Some(_report) = on_watchpoints("the_hit_of_a_stepped_instruction_is_told_after_the_step")
    else {
        return;
    };
    // With 1 and with all 4 debug registers watching.
    for count in [1, 4] {
        let tiny = guest(1, |a| {
            a.int3()?;
            power_off(a)
        });
        tiny.map_arena();
        let slot = tiny.slot(0, |a| a.mov(byte_ptr(rsp), 1));
        let watched: Vec<_> = (0..count)
            .map(|index| watch(WATCHED + index * 8, 8, Access::Write))
            .collect();
        debug(&tiny, true, &watched).unwrap();
        let traps = Arc::new(Mutex::new(Vec::new()));
        let int3 = Arc::new(Mutex::new(0));
        let (seen, at) = (Arc::clone(&traps), Arc::clone(&int3));
        let mut stack = 0;
        tiny.run(move |hit| {
            let rip = hit.rip();
            match hit.trap {
                Trap::Breakpoint => {
                    *at.lock().unwrap() = rip;
                    let registers = hit.vcpu.registers_mut();
                    (stack, registers.rsp) = (registers.rsp, WATCHED + (count - 1) * 8);
                    registers.rip = slot;
                    let handler = ExceptionHandler {
                        vector: 14,
                        entry: GuestVirtAddr(DATA),
                    };
                    return Action::Step(Step {
                        handlers: [Some(handler), None, None, None],
                        ..Step::default()
                    });
                }
                Trap::Step(StepEnd::Done) => {
                    hit.vcpu.registers_mut().rsp = stack;
                    hit.go_to(*at.lock().unwrap() + 1);
                }
                _ => {}
            }
            seen.lock().unwrap().push((hit.trap, rip));
            Action::Resume
        });
        let traps = traps.lock().unwrap();
        let back = *int3.lock().unwrap() + 1;
        assert_eq!(traps[0], (Trap::Step(StepEnd::Done), slot + 4));
        let (Trap::Watchpoint(hit), rip) = traps[1] else {
            panic!("{traps:?}")
        };
        assert_eq!((bits(hit), rip), (1 << (count - 1), back));
        assert_eq!(traps.len(), 2);
    }
}

/// Every debug exception makes an exit while watchpoints are set, also one that
/// is none of theirs.
#[test]
fn the_guests_own_single_steps_reach_it_while_watchpoints_are_set() {
    let Some(_report) = on_kvm("the_guests_own_single_steps_reach_it_while_watchpoints_are_set")
    else {
        return;
    };
    let tiny = guest(1, |a| {
        a.lidt(ptr(IDT_REGISTER))?;
        a.xor(ebx, ebx)?;
        // The instruction after `popfq` is the first that is stepped.
        a.pushfq()?;
        a.or(dword_ptr(rsp), TRAP_FLAG as i32)?;
        a.popfq()?;
        a.inc(ecx)?;
        a.inc(ecx)?;
        power_off(a)
    });
    tiny.map_arena();
    // Counts, keeps DR6, and ends the stepping at the second time.
    let handler = tiny.slot(0, |a| {
        let mut more = a.create_label();
        a.inc(ebx)?;
        a.mov(rax, iced_x86::code_asm::dr6)?;
        a.mov(ptr(DATA), rax)?;
        a.cmp(ebx, 2)?;
        a.jb(more)?;
        a.and(dword_ptr(rsp + 16), !(TRAP_FLAG as i32))?;
        a.set_label(&mut more)?;
        a.iretq()
    });
    tiny.gates(&[(1, handler)]);
    set(&tiny, &[watch(WATCHED, 8, Access::Write)]);
    tiny.run(|hit| panic!("{:?} is the guest's own", hit.trap));
    assert_eq!(tiny.registers(0).rbx, 2);
    let dr6 = tiny.vm.stopped(|g| word(g.memory(), DATA));
    assert_eq!(dr6 & 0xe00f, 0x4000, "BS and nothing else: {dr6:#x}");
}
