use super::*;
use FrameType::{Call, PartialRegisters, Undefined};

/// Code: a leaf, a function with 16 bytes of locals, one that keeps RBP, the outermost code, an interrupt's
/// entry, and what the processor itself pushes.
const LEAF: u64 = 0x100;
const LOCALS: u64 = 0x200;
const FRAME: u64 = 0x300;
const OUTERMOST: u64 = 0x400;
const INTERRUPT: u64 = 0x500;
const RAW_INTERRUPT: u64 = 0x600;
const ON_IRQ_STACK: u64 = 0x700;
const NOWHERE: u64 = 0x800;
const SPECIAL: u64 = 0x900;

fn table(special: OrcEntry) -> Unwinder {
    unwinder(Some(orc(&[
        (LEAF, OrcEntry::CALLED),
        (LOCALS, call(24)),
        (FRAME, OrcEntry::FRAME_POINTER),
        (OUTERMOST, END),
        (INTERRUPT, entry(FrameType::Registers, Base::Sp, 8)),
        (RAW_INTERRUPT, entry(PartialRegisters, Base::Sp, 8)),
        (ON_IRQ_STACK, entry(Call, Base::SpIndirect, 8)),
        (NOWHERE, entry(Undefined, Base::Undefined, 0)),
        (SPECIAL, special),
    ])))
}

fn plain() -> Unwinder {
    table(OrcEntry::CALLED)
}

fn check(words: &Words, start: &Registers, expected: &[u64], end: TraceEnd) {
    let trace = walk(&plain(), words, start);
    assert_eq!(offsets(&trace), expected);
    assert_eq!((trace.end, trace.guessed), (end, false));
}

fn text(offset: u64) -> u64 {
    TEXT + offset
}

#[test]
fn callers_are_found_up_to_the_outermost() {
    let words = Words::new()
        .put(STACK, &[text(LOCALS + 5)])
        .put(STACK + 24, &[text(LEAF + 9)])
        .put(STACK + 32, &[text(OUTERMOST + 7)]);
    let expected = [LEAF, LOCALS + 5, LEAF + 9, OUTERMOST + 7];
    check(&words, &at(LEAF, STACK, 0), &expected, TraceEnd::Complete);
}

#[test]
fn a_call_at_the_end_of_a_function_is_looked_up_there() {
    // The return address is already the next function's.
    let words = Words::new()
        .put(STACK, &[text(FRAME)])
        .put(STACK + 24, &[text(OUTERMOST + 1)]);
    let expected = [LEAF, FRAME, OUTERMOST + 1];
    check(&words, &at(LEAF, STACK, 0), &expected, TraceEnd::Complete);
}

#[test]
fn a_caller_s_frame_pointer_is_taken_along() {
    let words = Words::new()
        .put(STACK, &[text(FRAME + 8)])
        .put(STACK + 0x80, &[STACK + 0x180, text(FRAME + 9)])
        .put(STACK + 0x180, &[0, text(OUTERMOST + 1)]);
    let start = at(LEAF, STACK, STACK + 0x80);
    let expected = [LEAF, FRAME + 8, FRAME + 9, OUTERMOST + 1];
    check(&words, &start, &expected, TraceEnd::Complete);
}

#[test]
fn a_saved_frame_pointer_is_found_from_rbp_or_from_the_caller_s_stack() {
    // Each has the return address at RSP + 16, and a different word for RBP.
    let words = Words::new()
        .put(STACK + 0x10, &[text(FRAME + 8)])
        .put(STACK + 8, &[STACK + 0x40])
        .put(STACK + 0x90, &[STACK + 0x60])
        .put(STACK + 0x40, &[0, text(OUTERMOST + 1)])
        .put(STACK + 0x60, &[0, text(OUTERMOST + 2)])
        .put(STACK + 0x80, &[0, text(OUTERMOST + 3)]);
    for (bp, bp_offset, expected) in [
        (Base::PreviousSp, -16, 1),
        (Base::Bp, 16, 2),
        (Base::Undefined, 16, 3),
    ] {
        let unwinder = table(OrcEntry {
            bp,
            bp_offset,
            ..call(24)
        });
        let trace = walk(&unwinder, &words, &at(SPECIAL, STACK, STACK + 0x80));
        let expected = [SPECIAL, FRAME + 8, OUTERMOST + expected];
        assert_eq!(offsets(&trace), expected, "{bp:?}");
    }
}

#[test]
fn an_interrupted_function_is_looked_up_where_it_was() {
    let regs = STACK + 0x10;
    // It is at its very first instruction: what is in front is another function.
    let words = Words::new()
        .put(STACK, &[text(INTERRUPT + 4)])
        .regs(
            regs,
            KERNEL_CS,
            text(FRAME + 1),
            STACK + 0x200,
            &[(32, STACK + 0x300)],
        )
        .put(STACK + 0x300, &[0, text(LEAF)])
        .put(STACK + 0x310, &[text(OUTERMOST + 1)]);
    let expected = [LEAF, INTERRUPT + 4, FRAME + 1, LEAF];
    // The last one is a return address, and what called is in front of the table.
    let trace = walk(&plain(), &words, &at(LEAF, STACK, 1));
    assert_eq!(offsets(&trace), expected);
    assert_eq!((trace.end, trace.guessed), (TraceEnd::NotThere, true));
    let words = words.put(STACK + 0x300, &[0, text(LEAF + 1)]);
    let expected = [LEAF, INTERRUPT + 4, FRAME + 1, LEAF + 1, OUTERMOST + 1];
    check(&words, &at(LEAF, STACK, 1), &expected, TraceEnd::Complete);
}

#[test]
fn what_the_processor_pushed_is_enough_for_an_interrupted_function() {
    // RIP, CS, flags, RSP, SS
    let pushed = [text(LOCALS), KERNEL_CS, 2, STACK + 0x200, 0x18];
    let words = Words::new()
        .put(STACK + 8, &pushed)
        .put(STACK + 0x210, &[text(OUTERMOST + 1)]);
    let expected = [RAW_INTERRUPT + 3, LOCALS, OUTERMOST + 1];
    let start = at(RAW_INTERRUPT + 3, STACK, 0);
    check(&words, &start, &expected, TraceEnd::Complete);
}

#[test]
fn user_space_ends_a_trace() {
    let words = Words::new().put(STACK, &[text(INTERRUPT + 4)]).regs(
        STACK + 0x10,
        USER_CS,
        0x40_1000,
        0x7fff_0000,
        &[],
    );
    let expected = [LEAF, INTERRUPT + 4];
    check(&words, &at(LEAF, STACK, 0), &expected, TraceEnd::Complete);
}

#[test]
fn the_way_back_from_the_stack_for_interrupts_is_found() {
    // The address of the task's stack is the uppermost word of the other one.
    let words = Words::new()
        .put(IRQ_STACK, &[text(ON_IRQ_STACK + 5), STACK])
        .put(STACK, &[text(OUTERMOST + 1)]);
    let expected = [LEAF, ON_IRQ_STACK + 5, OUTERMOST + 1];
    check(
        &words,
        &at(LEAF, IRQ_STACK, 0),
        &expected,
        TraceEnd::Complete,
    );
}

#[test]
fn each_register_can_lead_to_the_caller() {
    let start = Registers {
        rax: STACK + 0x110,
        rdx: STACK + 0x210,
        rdi: STACK + 0x310,
        r10: STACK + 0x410,
        r13: STACK + 0x510,
        rbp: STACK + 0x600,
        ..at(SPECIAL, STACK, 0)
    };
    let words = Words::new()
        .put(STACK + 0x608, &[STACK + 0x710])
        .put(STACK + 0x610, &[text(OUTERMOST + 6)])
        .put(STACK, &[STACK + 0x808]);
    let mut words = words.put(STACK + 0x708, &[text(OUTERMOST + 7)]);
    words = words.put(STACK + 0x808, &[text(OUTERMOST + 8)]);
    for i in 1..6 {
        words = words.put(STACK + 0x108 + (i - 1) * 0x100, &[text(OUTERMOST + i)]);
    }
    let register = Base::Register;
    for (base, offset, expected) in [
        (register(Register::Rax), 0, 1),
        (register(Register::Rdx), 0, 2),
        (register(Register::Rdi), 0, 3),
        (register(Register::R10), 0, 4),
        (register(Register::R13), 0, 5),
        // Nothing is added to a register.
        (register(Register::R13), 64, 5),
        (Base::Bp, 24, 6),
        (Base::BpIndirect, 8, 7),
        (Base::SpIndirect, 8, 8),
    ] {
        let unwinder = table(entry(Call, base, offset));
        let trace = walk(&unwinder, &words, &start);
        assert_eq!(offsets(&trace), [SPECIAL, OUTERMOST + expected], "{base:?}");
    }
}

#[test]
fn registers_of_interrupted_code_are_found_on_the_stack() {
    let words = |offset| {
        Words::new()
            .put(STACK, &[text(INTERRUPT + 4)])
            .regs(
                STACK + 0x10,
                KERNEL_CS,
                text(SPECIAL),
                STACK + 0x200,
                &[(offset, STACK + 0x310)],
            )
            .put(STACK + 0x308, &[text(OUTERMOST + 1)])
    };
    for (register, offset) in [
        (Register::Rax, 80),
        (Register::Rdx, 96),
        (Register::Rdi, 112),
        (Register::R10, 56),
        (Register::R13, 16),
    ] {
        let unwinder = table(entry(Call, Base::Register(register), 0));
        let trace = walk(&unwinder, &words(offset), &at(LEAF, STACK, 0));
        let expected = [LEAF, INTERRUPT + 4, SPECIAL, OUTERMOST + 1];
        assert_eq!(offsets(&trace), expected, "{register:?}");
    }
}

#[test]
fn an_interrupt_s_entry_that_is_interrupted_leaves_registers_known() {
    // An interrupt with a whole `struct pt_regs` came into the entry, which has only what the processor pushed so far.
    let regs = STACK + 0x10;
    let pushed = [text(SPECIAL), KERNEL_CS, 2, STACK + 0x400, 0x18];
    let words = Words::new()
        .put(STACK, &[text(INTERRUPT + 4)])
        .regs(
            regs,
            KERNEL_CS,
            text(RAW_INTERRUPT),
            STACK + 0x200,
            &[(56, STACK + 0x510)],
        )
        .put(STACK + 0x208, &pushed)
        .put(STACK + 0x508, &[text(OUTERMOST + 1)]);
    let unwinder = table(entry(Call, Base::Register(Register::R10), 0));
    let trace = walk(&unwinder, &words, &at(LEAF, STACK, 0));
    let expected = [LEAF, INTERRUPT + 4, RAW_INTERRUPT, SPECIAL, OUTERMOST + 1];
    assert_eq!(offsets(&trace), expected);
}

#[test]
fn a_register_of_a_function_that_has_called_another_is_not_known() {
    let unwinder = table(entry(Call, Base::Register(Register::R10), 0));
    let words = Words::new().put(STACK, &[text(SPECIAL + 1)]);
    let trace = walk(&unwinder, &words, &at(LEAF, STACK, 0));
    assert_eq!(offsets(&trace), [LEAF, SPECIAL + 1]);
    assert_eq!(trace.end, TraceEnd::NoRegister);
}

#[test]
fn a_null_function_s_caller_is_found() {
    let words = Words::new().put(STACK, &[text(OUTERMOST + 1)]);
    let start = Registers {
        rsp: STACK,
        ..Registers::default()
    };
    let expected = [0_u64.wrapping_sub(TEXT), OUTERMOST + 1];
    check(&words, &start, &expected, TraceEnd::Complete);
}

#[test]
fn each_way_of_having_no_caller_is_told() {
    let undefined = entry(Call, Base::Undefined, 0);
    let unknown_bp = OrcEntry {
        bp: Base::SpIndirect,
        ..OrcEntry::CALLED
    };
    let unknown_frame = entry(FrameType::Unknown, Base::Sp, 8);
    for (special, word, end) in [
        (OrcEntry::CALLED, None, TraceEnd::NotThere),
        (OrcEntry::CALLED, Some(0x40_1000), TraceEnd::NotText),
        (OrcEntry::CALLED, Some(STACK), TraceEnd::NotText),
        (END, None, TraceEnd::Complete),
        (entry(Undefined, Base::Sp, 8), None, TraceEnd::NoEntry),
        (undefined, Some(TEXT), TraceEnd::NoEntry),
        (unknown_bp, Some(TEXT), TraceEnd::NoEntry),
        (unknown_frame, Some(TEXT), TraceEnd::NoEntry),
        (entry(Call, Base::Unknown, 8), Some(TEXT), TraceEnd::NoEntry),
    ] {
        let words = word.map_or_else(Words::new, |word| Words::new().put(STACK, &[word]));
        let trace = walk(&table(special), &words, &at(SPECIAL, STACK, 0));
        assert_eq!(offsets(&trace), [SPECIAL], "{special:?}");
        assert_eq!(trace.end, end, "{special:?}");
    }
}

#[test]
fn code_without_entries_is_taken_to_have_a_frame_pointer() {
    let program = 0xffff_ffff_c012_3456;
    let words = Words::new()
        .put(STACK, &[program])
        .put(STACK + 0x40, &[STACK + 0x80, text(FRAME + 1)])
        .put(STACK + 0x80, &[0, text(OUTERMOST + 1)]);
    let trace = walk(&plain(), &words, &at(LEAF, STACK, STACK + 0x40));
    let expected = [LEAF, program - TEXT, FRAME + 1];
    assert_eq!(offsets(&trace)[..3], expected);
    assert_eq!((trace.end, trace.guessed), (TraceEnd::Complete, true));
}

#[test]
fn a_circle_ends() {
    // Each function's frame pointer leads to the other's.
    let words = Words::new()
        .put(STACK, &[STACK + 0x100, text(FRAME + 1)])
        .put(STACK + 0x100, &[STACK, text(FRAME + 2)]);
    let trace = walk(&plain(), &words, &at(FRAME + 4, STACK - 8, STACK));
    assert_eq!(trace.end, TraceEnd::Circular);
    assert!(trace.addresses.len() < 24, "{trace:?}");
    // A function whose caller has the same stack pointer.
    let words = Words::new().put(STACK - 8, &[text(SPECIAL + 1)]);
    let trace = walk(&table(call(0)), &words, &at(SPECIAL, STACK, 0));
    assert_eq!(trace.end, TraceEnd::Circular);
    assert!(trace.addresses.len() < 12, "{trace:?}");
}

#[test]
fn a_trace_is_no_longer_than_wanted_or_than_any_stack() {
    let unwinder = plain();
    let mut everywhere = |_| Some(text(LEAF + 1));
    for (frames, len) in [
        (0, 0),
        (1, 1),
        (5, 5),
        (MAX_FRAMES, MAX_FRAMES),
        (usize::MAX, MAX_FRAMES),
    ] {
        let around = Surroundings {
            memory: &mut everywhere,
            kernel: &mut |_| None,
            foreign: &mut |_, _, _| None,
            task: None,
        };
        let trace = unwinder.unwind(&at(LEAF, STACK, 0), around, frames);
        assert_eq!((trace.addresses.len(), trace.end), (len, TraceEnd::Full));
    }
}

#[test]
fn a_captured_piece_of_a_stack_is_unwound_to_its_end() {
    let words = [text(LOCALS + 5), 1, 2, text(LEAF + 9), text(LEAF + 10)];
    let bytes: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut expected = vec![LEAF, LOCALS + 5, LEAF + 9, LEAF + 10];
    for (cut, left) in [(0, 4), (1, 3), (8, 3), (15, 2), (40, 1)] {
        let stack = CapturedStack {
            start: GuestVirtAddr(STACK),
            bytes: &bytes[..bytes.len() - cut],
        };
        let around = Surroundings {
            memory: &mut |at| stack.read(at),
            kernel: &mut |_| None,
            foreign: &mut |_, _, _| None,
            task: None,
        };
        let trace = plain().unwind(&at(LEAF, STACK, 0), around, 64);
        expected.truncate(left);
        assert_eq!(offsets(&trace), expected, "{cut}");
        assert_eq!(trace.end, TraceEnd::NotThere);
    }
}

#[test]
fn a_captured_piece_has_only_what_is_whole_in_it() {
    let stack = CapturedStack {
        start: GuestVirtAddr(STACK),
        bytes: &[1, 0, 0, 0, 0, 0, 0, 0, 2],
    };
    for (at, expected) in [
        (STACK, Some(1)),
        (STACK + 1, Some(2 << 56)),
        (STACK + 2, None),
        (STACK - 1, None),
        (0, None),
        (u64::MAX, None),
    ] {
        assert_eq!(stack.read(GuestVirtAddr(at)), expected, "{at:#x}");
    }
}
