//! Steps in tiny guests, on this machine's KVM: out of line, through exceptions,
//! with others running, and stopped in the middle.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::{
    report::on_kvm,
    tiny::{self, CODE_SELECTOR, DATA, Hit, IDT_REGISTER, TRAP_FLAG, guest, power_off, word},
};
use guest_state::{
    Action, ExceptionHandler, GuestVirtAddr, Step, StepEnd, StoppedGuest, Trap, VcpuId,
};
use iced_x86::code_asm::{dword_ptr, ebx, ecx, ptr, qword_ptr, r8d, rax, rdi, rsp};

/// Vectors (SDM vol. 3, 6.3.1), and whether they push an error code.
const DIVIDE: (u64, bool) = (0, false);
const INVALID_OPCODE: (u64, bool) = (6, false);
const GENERAL_PROTECTION: (u64, bool) = (13, true);
const PAGE_FAULT: (u64, bool) = (14, true);
/// Not mapped, and not canonical.
const UNMAPPED: u64 = 0x7f00_0000_0000;
const NOT_CANONICAL: u64 = 0x8000_0000_0000_0000;
/// Counts of the exception handlers, a word each.
const COUNTS: u64 = DATA;
/// What the handler of page faults found in CR2.
const CR2: u64 = DATA + 0x100;
/// Where string instructions write.
const TEXT_OUT: u64 = DATA + 0x200;

/// Returns true if this KVM emulates kernel-mode code. Then TF stays set when an exception is
/// delivered, against SDM vol. 3, 6.12.1.3, so that a step through an exception that isn't watched
/// for ends after the handler's first instruction.
fn emulates() -> bool {
    let int3 = vmm_doctor::examine().guest.and_then(|guest| guest.int3);
    int3.is_some_and(|int3| int3.shape == vmm_doctor::Int3Shape::InternalError)
}

fn step(handlers: &[ExceptionHandler]) -> Action {
    let mut step = Step::default();
    for (slot, handler) in step.handlers.iter_mut().zip(handlers) {
        *slot = Some(*handler);
    }
    Action::Step(step)
}

fn alone(action: Action) -> Action {
    let Action::Step(step) = action else {
        panic!("{action:?} is no step")
    };
    Action::Step(Step {
        alone: true,
        ..step
    })
}

/// A handler, of page faults unless told otherwise.
fn handler(entry: u64) -> ExceptionHandler {
    ExceptionHandler {
        vector: PAGE_FAULT.0 as u8,
        entry: GuestVirtAddr(entry),
    }
}

/// A guest that executes `int3s` int3s. Its exception handlers, in the arena,
/// count and go back; that of #UD goes back only after `TEXT_OUT` is set.
struct Stepped {
    tiny: tiny::Tiny,
    handlers: Vec<ExceptionHandler>,
}

impl Stepped {
    fn new(int3s: u32) -> Self {
        let tiny = guest(1, |a| {
            a.lidt(ptr(IDT_REGISTER))?;
            for _ in 0..int3s {
                a.int3()?;
            }
            power_off(a)
        });
        tiny.map_arena();
        let vectors = [DIVIDE, GENERAL_PROTECTION, PAGE_FAULT, INVALID_OPCODE];
        let handlers: Vec<u64> = (8..)
            .zip(vectors)
            .map(|(index, (vector, error_code))| {
                tiny.slot(index, |a| {
                    a.inc(qword_ptr(COUNTS + vector * 8))?;
                    if vector == INVALID_OPCODE.0 {
                        let mut again = a.create_label();
                        a.set_label(&mut again)?;
                        a.cmp(dword_ptr(TEXT_OUT), 0)?;
                        a.je(again)?;
                    }
                    if vector == PAGE_FAULT.0 {
                        a.push(rax)?;
                        a.mov(rax, iced_x86::code_asm::cr2)?;
                        a.mov(ptr(CR2), rax)?;
                        a.pop(rax)?;
                    }
                    if error_code {
                        a.add(rsp, 8)?;
                    }
                    a.iretq()
                })
            })
            .collect();
        let gates: Vec<(u64, u64)> = vectors
            .iter()
            .zip(&handlers)
            .map(|((vector, _), handler)| (*vector, *handler))
            .collect();
        tiny.gates(&gates);
        tiny.vm.stopped(tiny::catch_int3s);
        let handlers = vectors.iter().zip(handlers).map(|((vector, _), entry)| {
            let vector = *vector as u8;
            ExceptionHandler {
                vector,
                ..handler(entry)
            }
        });
        let handlers = handlers.collect();
        Self { tiny, handlers }
    }

    fn count(&self, vector: u64) -> u64 {
        self.tiny
            .vm
            .stopped(|g| word(g.memory(), COUNTS + vector * 8))
    }
}

#[test]
fn an_instruction_is_stepped_out_of_line() {
    let Some(_report) = on_kvm("an_instruction_is_stepped_out_of_line") else {
        return;
    };
    let stepped = Stepped::new(1);
    let slot = stepped.tiny.slot(0, |a| a.inc(ebx));
    let handlers = stepped.handlers.clone();
    let traps = Arc::new(Mutex::new(Vec::new()));
    let (seen, mut back) = (Arc::clone(&traps), 0);
    stepped.tiny.run(move |hit| {
        seen.lock()
            .unwrap()
            .push((hit.trap, hit.vcpu.step_under_way()));
        match hit.trap {
            Trap::Breakpoint => {
                back = hit.rip() + 1;
                hit.go_to(slot);
                step(&handlers)
            }
            _ => {
                assert_eq!(hit.rip(), slot + 2);
                assert_eq!(hit.vcpu.registers().rflags & TRAP_FLAG, 0);
                let control = hit.vcpu.control().unwrap();
                assert_eq!(control.idt_limit, 0x1ff);
                assert_eq!(control.idt_base, DATA + 0xe000);
                hit.go_to(back);
                Action::Resume
            }
        }
    });
    let expected = [
        (Trap::Breakpoint, None),
        (Trap::Step(StepEnd::Done), Some(GuestVirtAddr(slot))),
    ];
    assert_eq!(*traps.lock().unwrap(), expected);
    assert_eq!(stepped.tiny.registers(0).rbx, 1);
    let exits = stepped.tiny.vm.exits();
    assert_eq!((exits.breakpoint, exits.step, exits.hardware), (1, 1, 0));
    assert!(exits.port_io >= 1);
}

#[test]
fn an_exception_of_the_stepped_instruction_is_noticed_at_its_handler() {
    let Some(_report) = on_kvm("an_exception_of_the_stepped_instruction_is_noticed_at_its_handler")
    else {
        return;
    };
    for alone_too in [false, true] {
        let stepped = Stepped::new(3);
        let load = stepped.tiny.slot(0, |a| a.mov(rax, ptr(rdi)));
        let divide = stepped.tiny.slot(1, |a| a.div(ecx));
        // Slot, RDI, vector, error code.
        let cases = [
            (load, UNMAPPED, PAGE_FAULT, Some(0)),
            (load, NOT_CANONICAL, GENERAL_PROTECTION, Some(0)),
            (divide, 0, DIVIDE, None),
        ];
        let handlers = stepped.handlers.clone();
        let at = [(0, 0), (13, 1), (14, 2)];
        let (mut case, mut back, mut asked, mut stack) = (0, 0, 0, 0);
        let mut begun = Instant::now();
        stepped.tiny.run(move |hit| {
            if hit.before_step {
                asked += 1;
                return Action::Resume;
            }
            let (slot, pointer, (vector, _), error_code) = cases[case];
            match hit.trap {
                Trap::Breakpoint => {
                    back = hit.rip() + 1;
                    let registers = hit.vcpu.registers_mut();
                    (registers.rip, registers.rdi) = (slot, pointer);
                    (registers.rax, registers.rdx, registers.rcx) = (1, 0, 0);
                    stack = registers.rsp;
                    begun = Instant::now();
                    match alone_too {
                        true => alone(step(&handlers)),
                        false => step(&handlers),
                    }
                }
                Trap::Step(StepEnd::Exception(raised)) => {
                    // Far below the time limit of a step.
                    assert!(begun.elapsed() < Duration::from_millis(400));
                    let index = at.iter().find(|(v, _)| *v == vector).unwrap().1;
                    assert_eq!(u64::from(raised), vector);
                    assert_eq!(hit.rip(), handlers[index].entry.0);
                    assert_eq!(asked, usize::from(alone_too) * (case + 1));
                    // The frame (SDM vol. 3, 6.14.2).
                    let first = u64::from(error_code.is_some());
                    if let Some(code) = error_code {
                        assert_eq!(hit.stack(0), code);
                    }
                    assert_eq!(hit.stack(first), slot);
                    assert_eq!(hit.stack(first + 1), CODE_SELECTOR);
                    let flags = hit.stack(first + 2);
                    println!("vector {vector}: flags on the stack {flags:#x}");
                    assert_eq!(hit.stack(first + 3), stack);
                    hit.set_stack(first, back);
                    hit.set_stack(first + 2, flags & !TRAP_FLAG);
                    case += 1;
                    Action::Resume
                }
                other => panic!("{other:?} at {:#x}", hit.rip()),
            }
        });
        for (vector, _) in [DIVIDE, GENERAL_PROTECTION, PAGE_FAULT] {
            assert_eq!(stepped.count(vector), 1, "vector {vector}");
        }
        let cr2 = stepped.tiny.vm.stopped(|g| word(g.memory(), CR2));
        assert_eq!(cr2, UNMAPPED);
        assert_eq!(stepped.tiny.vm.exits().hardware, 3);
    }
}

#[test]
fn an_exception_that_nobody_watches_for_makes_the_step_astray() {
    let Some(_report) = on_kvm("an_exception_that_nobody_watches_for_makes_the_step_astray") else {
        return;
    };
    let stepped = Stepped::new(1);
    let slot = stepped.tiny.slot(0, |a| a.ud2());
    let handlers = stepped.handlers.clone();
    let traps = Arc::new(Mutex::new(Vec::new()));
    let (seen, mut back) = (Arc::clone(&traps), 0);
    stepped.tiny.run(move |hit| {
        seen.lock().unwrap().push(hit.trap);
        match hit.trap {
            Trap::Breakpoint => {
                back = hit.rip() + 1;
                hit.go_to(slot);
                step(&handlers[..3])
            }
            _ => {
                assert_eq!(hit.vcpu.step_under_way(), Some(GuestVirtAddr(slot)));
                let last = handlers[3].entry.0;
                assert!((last..last + 0x40).contains(&hit.rip()));
                hit.set_stack(0, back);
                hit.set_stack(2, 2);
                tiny::write(hit.memory, TEXT_OUT, &[1]);
                Action::Resume
            }
        }
    });
    let astray = match emulates() {
        true => Trap::Step(StepEnd::Done),
        false => Trap::Step(StepEnd::Astray),
    };
    assert_eq!(*traps.lock().unwrap(), [Trap::Breakpoint, astray]);
    assert_eq!(stepped.count(INVALID_OPCODE.0), 1);
}

#[test]
fn a_repeated_string_instruction_is_stepped_in_rounds() {
    let Some(_report) = on_kvm("a_repeated_string_instruction_is_stepped_in_rounds") else {
        return;
    };
    let stepped = Stepped::new(1);
    let slot = stepped.tiny.slot(0, |a| a.rep().stosb());
    let handlers = stepped.handlers.clone();
    let (mut back, mut rounds) = (0, 0);
    stepped.tiny.run(move |hit| {
        if hit.trap == Trap::Breakpoint {
            back = hit.rip() + 1;
            let registers = hit.vcpu.registers_mut();
            (registers.rip, registers.rdi) = (slot, TEXT_OUT);
            (registers.rcx, registers.rax) = (3, 7);
            return step(&handlers);
        }
        assert_eq!(hit.trap, Trap::Step(StepEnd::Done));
        rounds += 1;
        if hit.rip() == slot && hit.vcpu.registers().rcx != 0 {
            return step(&handlers);
        }
        println!("{rounds} rounds");
        hit.go_to(back);
        Action::Resume
    });
    let written = stepped.tiny.vm.stopped(|g| word(g.memory(), TEXT_OUT));
    assert_eq!(written, 0x07_0707);
}

#[test]
fn a_repeated_string_instruction_can_run_through_to_its_end() {
    let Some(_report) = on_kvm("a_repeated_string_instruction_can_run_through_to_its_end") else {
        return;
    };
    let stepped = Stepped::new(1);
    let slot = stepped.tiny.slot(0, |a| {
        a.rep().stosb()?;
        a.nop()
    });
    let end = slot + 2;
    let handlers = stepped.handlers.clone();
    let (mut back, mut traps) = (0, 0);
    stepped.tiny.run(move |hit| {
        if hit.trap == Trap::Breakpoint {
            back = hit.rip() + 1;
            let registers = hit.vcpu.registers_mut();
            (registers.rip, registers.rdi) = (slot, TEXT_OUT);
            (registers.rcx, registers.rax) = (8, 7);
            let Action::Step(step) = step(&handlers) else {
                panic!("no step");
            };
            return Action::Step(Step {
                run_to: Some(GuestVirtAddr(end)),
                ..step
            });
        }
        traps += 1;
        assert_eq!(hit.trap, Trap::Step(StepEnd::Done));
        assert_eq!((hit.rip(), hit.vcpu.registers().rcx, traps), (end, 0, 1));
        hit.go_to(back);
        Action::Resume
    });
    let written = stepped.tiny.vm.stopped(|g| word(g.memory(), TEXT_OUT));
    assert_eq!(written, 0x0707_0707_0707_0707);
}

#[test]
fn a_breakpoint_on_the_way_leaves_the_step_as_it_is() {
    let Some(report) = on_kvm("a_breakpoint_on_the_way_leaves_the_step_as_it_is") else {
        return;
    };
    if emulates() {
        report.skip("this KVM emulates kernel-mode code and ends the step at once".into());
        return;
    }
    // The handler of #UD, which isn't watched for, hits an int3 and then makes a
    // page fault, which is.
    let tiny = guest(1, |a| {
        a.lidt(ptr(IDT_REGISTER))?;
        a.int3()?;
        power_off(a)
    });
    tiny.map_arena();
    let slot = tiny.slot(0, |a| a.ud2());
    let invalid = tiny.slot(1, |a| {
        a.nop()?;
        a.int3()?;
        a.mov(rdi, UNMAPPED)?;
        a.mov(rax, ptr(rdi))
    });
    let fault = tiny.slot(2, |a| a.nop());
    tiny.gates(&[(INVALID_OPCODE.0, invalid), (PAGE_FAULT.0, fault)]);
    tiny.vm.stopped(tiny::catch_int3s);
    let traps = Arc::new(Mutex::new(Vec::new()));
    let (seen, mut back) = (Arc::clone(&traps), None);
    tiny.run(move |hit| {
        seen.lock()
            .unwrap()
            .push((hit.trap, hit.rip(), hit.vcpu.step_under_way()));
        match (hit.trap, back) {
            (Trap::Breakpoint, None) => {
                back = Some(hit.rip() + 1);
                hit.go_to(slot);
                step(&[handler(fault)])
            }
            (Trap::Breakpoint, Some(_)) => {
                hit.go_to(invalid + 2);
                Action::Resume
            }
            (_, Some(back)) => {
                hit.go_to(back);
                Action::Resume
            }
            other => panic!("{other:?}"),
        }
    });
    let traps = traps.lock().unwrap();
    assert_eq!(traps[0].2, None);
    let slot = Some(GuestVirtAddr(slot));
    assert_eq!(traps[1], (Trap::Breakpoint, invalid + 1, slot));
    let (trap, rip, under_way) = traps[2];
    assert_eq!(trap, Trap::Step(StepEnd::Exception(PAGE_FAULT.0 as u8)));
    assert_eq!((rip, under_way), (fault, slot));
    assert_eq!(traps.len(), 3);
}

/// One vCPU steps all the time and is stopped at any point; no step is lost and
/// none is done twice, while what is debugged for is set anew and the vCPU is
/// moved from one copy of the instruction to another.
#[test]
fn a_step_goes_on_after_the_vcpu_was_stopped_in_the_middle() {
    const ROUNDS: u32 = 3000;
    let Some(_report) = on_kvm("a_step_goes_on_after_the_vcpu_was_stopped_in_the_middle") else {
        return;
    };
    let tiny = guest(1, |a| {
        let mut again = a.create_label();
        a.xor(ebx, ebx)?;
        a.mov(r8d, ROUNDS)?;
        a.set_label(&mut again)?;
        a.int3()?;
        a.dec(r8d)?;
        a.jnz(again)?;
        power_off(a)
    });
    tiny.map_arena();
    let slot = tiny.slot(0, |a| a.inc(ebx));
    let other = tiny.slot(1, |a| a.add(ebx, 1));
    tiny.vm.stopped(tiny::catch_int3s);
    let (mut back, mut ends) = (0, [0, 0]);
    let counted = Arc::new(Mutex::new(ends));
    let count = Arc::clone(&counted);
    tiny.start(move |hit: &mut Hit<'_>| match hit.trap {
        Trap::Breakpoint => {
            back = hit.rip() + 1;
            hit.go_to(slot);
            step(&[handler(DATA)])
        }
        Trap::Step(StepEnd::Done) => {
            assert!([slot + 2, other + 3].contains(&hit.rip()));
            ends[usize::from(hit.rip() == other + 3)] += 1;
            *count.lock().unwrap() = ends;
            hit.go_to(back);
            Action::Resume
        }
        other => panic!("{other:?} at {:#x}", hit.rip()),
    });
    let (mut stops, mut amid, mut moved) = (0, 0, 0);
    while tiny.vm.ending().is_none() {
        tiny.vm.stopped(|g| {
            assert!(g.since().elapsed() < Duration::from_secs(60));
            let mut registers = g.registers(VcpuId(0)).unwrap();
            if registers.rip == slot {
                amid += 1;
                if amid % 2 == 0 {
                    registers.rip = other;
                    g.set_registers(VcpuId(0), &registers).unwrap();
                    moved += 1;
                }
            }
            tiny::catch_int3s(g);
        });
        stops += 1;
    }
    tiny.vm.wait();
    println!("{stops} stops, {amid} of them before a step's instruction, {moved} moves");
    assert_eq!(*counted.lock().unwrap(), [ROUNDS - moved, moved]);
    assert_eq!(tiny.registers(0).rbx, u64::from(ROUNDS));
    let exits = tiny.vm.exits();
    assert_eq!(
        (exits.breakpoint, exits.step),
        (u64::from(ROUNDS), u64::from(ROUNDS))
    );
    assert!(amid > 0, "no stop came in the middle of a step");
}

#[test]
fn the_others_run_during_a_step_unless_it_is_alone() {
    const COUNT: u64 = 0x6000;
    let Some(_report) = on_kvm("the_others_run_during_a_step_unless_it_is_alone") else {
        return;
    };
    let tiny = guest(2, |a| {
        tiny::start_second_vcpu(a)?;
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.cmp(dword_ptr(COUNT), 0)?;
        a.je(again)?;
        a.int3()?;
        a.int3()?;
        power_off(a)
    });
    tiny.map_arena();
    let slot = tiny.slot(0, |a| a.inc(ebx));
    // xor ax,ax; mov ds,ax; inc word [0x6000]; jmp back
    let code = [0x31, 0xc0, 0x8e, 0xd8, 0xff, 0x06, 0x00, 0x60, 0xeb, 0xfa];
    tiny.vm.stopped(|g| {
        tiny::write(g.memory(), tiny::SECOND_START, &code);
        tiny::write(g.memory(), COUNT, &[0; 8]);
        tiny::catch_int3s(g);
    });
    let (mut hits, mut back, mut before) = (0, 0, 0);
    let steps = Arc::new(Mutex::new(0));
    let done = Arc::clone(&steps);
    tiny.run(move |hit| {
        if hit.before_step {
            before = word(hit.memory, COUNT);
            return Action::Resume;
        }
        if hit.trap == Trap::Breakpoint {
            hits += 1;
            back = hit.rip() + 1;
            hit.go_to(slot);
            return match hits {
                1 => step(&[handler(DATA)]),
                _ => alone(step(&[handler(DATA)])),
            };
        }
        assert_eq!((hit.trap, hit.rip()), (Trap::Step(StepEnd::Done), slot + 2));
        let now = word(hit.memory, COUNT);
        if hits == 1 {
            // This loop would hang if the other vCPU stood still.
            while word(hit.memory, COUNT) == now {
                thread::yield_now();
            }
        } else {
            assert_eq!(now, before);
        }
        *done.lock().unwrap() += 1;
        hit.go_to(back);
        Action::Resume
    });
    assert_eq!(*steps.lock().unwrap(), 2);
    assert_eq!(tiny.registers(0).rbx, 2);
}

#[test]
fn a_step_alone_that_is_called_off_leaves_nothing_of_the_step_before() {
    let Some(_report) = on_kvm("a_step_alone_that_is_called_off_leaves_nothing_of_the_step_before")
    else {
        return;
    };
    let stepped = Stepped::new(1);
    let slot = stepped.tiny.slot(0, |a| a.inc(ebx));
    let handlers = stepped.handlers.clone();
    let (mut traps, mut back) = (0, 0);
    stepped.tiny.run(move |hit| {
        if hit.before_step {
            // Called off.
            return Action::Halt;
        }
        traps += 1;
        match (traps, hit.trap) {
            (1, Trap::Breakpoint) => {
                back = hit.rip() + 1;
                hit.go_to(slot);
                step(&handlers)
            }
            (2, Trap::Step(StepEnd::Done)) => {
                hit.go_to(back);
                alone(step(&handlers))
            }
            other => panic!("{other:?} at {:#x}", hit.rip()),
        }
    });
    let exits = stepped.tiny.vm.exits();
    assert_eq!((exits.breakpoint, exits.step, exits.hardware), (1, 1, 0));
}
