use super::*;

const LEAF: u64 = 0x100;
const OUTERMOST: u64 = 0x400;
const INTERRUPT: u64 = 0x500;
/// Where inserted code is.
const OURS: u64 = 0xffff_ffff_1000_0000;

fn table() -> Unwinder {
    unwinder(Some(orc(&[
        (LEAF, OrcEntry::CALLED),
        (OUTERMOST, END),
        (INTERRUPT, entry(FrameType::Registers, Base::Sp, 8)),
    ])))
}

/// Unwinds with one inserted place: its address, the slot that the walk must ask for, and what the place stands for.
fn walk_with(
    words: &Words,
    start: &Registers,
    (address, slot, foreign): (u64, u64, Foreign),
) -> StackTrace {
    let around = Surroundings {
        memory: &mut |at| words.read(at),
        kernel: &mut |_| None,
        foreign: &mut |at, asked, _| {
            let is_it = at.0 == address;
            assert!(!is_it || asked.0 == slot, "{asked}");
            is_it.then_some(foreign)
        },
        task: None,
    };
    table().unwind(start, around, 64)
}

fn returned(offset: u64) -> Foreign {
    Foreign::Returned {
        original: GuestVirtAddr(TEXT + offset),
    }
}

fn copy(offset: u64, pushed: u64) -> Foreign {
    Foreign::Copy {
        original: GuestVirtAddr(TEXT + offset),
        pushed,
    }
}

#[test]
fn a_replaced_return_address_is_shown_as_it_was() {
    let words = Words::new()
        .put(STACK, &[OURS])
        .put(STACK + 8, &[TEXT + OUTERMOST + 1]);
    let ours = (OURS, STACK, returned(LEAF + 9));
    let trace = walk_with(&words, &at(LEAF, STACK, 0), ours);
    assert_eq!(offsets(&trace), [LEAF, LEAF + 9, OUTERMOST + 1]);
    assert_eq!((trace.end, trace.guessed), (TraceEnd::Complete, false));
}

#[test]
fn code_that_just_returned_to_ours_is_where_it_would_have_returned() {
    let words = Words::new().put(STACK, &[TEXT + OUTERMOST + 1]);
    let start = Registers {
        rip: OURS,
        ..at(0, STACK, 0)
    };
    let ours = (OURS, STACK - 8, returned(LEAF + 9));
    let trace = walk_with(&words, &start, ours);
    assert_eq!(offsets(&trace), [LEAF + 9, OUTERMOST + 1]);
}

#[test]
fn what_a_copy_has_pushed_is_passed_by() {
    let words = Words::new().put(STACK + 24, &[TEXT + OUTERMOST + 1]);
    let start = Registers {
        rip: OURS + 7,
        ..at(0, STACK, 0)
    };
    let ours = (OURS + 7, STACK - 8, copy(LEAF, 24));
    let trace = walk_with(&words, &start, ours);
    // At its first instruction: what is in front is another function.
    assert_eq!(offsets(&trace), [LEAF, OUTERMOST + 1]);
}

#[test]
fn an_interrupted_copy_is_shown_as_the_original() {
    let words = Words::new()
        .put(STACK, &[TEXT + INTERRUPT + 4])
        .regs(STACK + 0x10, KERNEL_CS, OURS, STACK + 0x200, &[])
        .put(STACK + 0x210, &[TEXT + OUTERMOST + 1]);
    let ours = (OURS, STACK + 0x1f8, copy(LEAF, 16));
    let trace = walk_with(&words, &at(LEAF, STACK, 0), ours);
    let expected = [LEAF, INTERRUPT + 4, LEAF, OUTERMOST + 1];
    assert_eq!(offsets(&trace), expected);
}

#[test]
fn an_interrupt_in_code_that_was_put_between_came_in_before_what_comes_next() {
    const FRAMED: u64 = 0x600;
    // Of the registers there only RBP is the kernel's.
    let words = Words::new()
        .put(STACK, &[TEXT + INTERRUPT + 4])
        .regs(
            STACK + 0x10,
            KERNEL_CS,
            OURS + 0x40,
            STACK + 0x200,
            &[(32, STACK + 0x310), (56, STACK + 0x400)],
        )
        .put(STACK + 0x308, &[TEXT + OUTERMOST + 1]);
    let inserted = Foreign::Inserted {
        original: GuestVirtAddr(TEXT + FRAMED),
        sp: GuestVirtAddr(STACK + 0x2f0),
    };
    let bases = [
        (Base::Sp, 0x20, TraceEnd::Complete),
        (Base::Bp, 0, TraceEnd::Complete),
        (Base::Register(Register::R10), 0, TraceEnd::NoRegister),
    ];
    for (base, offset, end) in bases {
        let unwinder = unwinder(Some(orc(&[
            (LEAF, OrcEntry::CALLED),
            (OUTERMOST, END),
            (INTERRUPT, entry(FrameType::Registers, Base::Sp, 8)),
            (FRAMED, entry(FrameType::Call, base, offset)),
        ])));
        let around = Surroundings {
            memory: &mut |at| words.read(at),
            kernel: &mut |_| None,
            foreign: &mut |at, slot, read| {
                assert_eq!(read(GuestVirtAddr(STACK)), Some(TEXT + INTERRUPT + 4));
                (at.0 == OURS + 0x40 && slot.0 == STACK + 0x1f8).then_some(inserted)
            },
            task: None,
        };
        let trace = unwinder.unwind(&at(LEAF, STACK, 0), around, 64);
        let mut expected = vec![LEAF, INTERRUPT + 4, FRAMED];
        if end == TraceEnd::Complete {
            expected.push(OUTERMOST + 1);
        }
        assert_eq!(offsets(&trace), expected);
        assert_eq!(trace.end, end);
    }
}

#[test]
fn code_that_was_put_between_leads_to_what_a_replaced_return_address_was() {
    let words = Words::new()
        .put(STACK, &[TEXT + INTERRUPT + 4])
        .regs(STACK + 0x10, KERNEL_CS, OURS, STACK + 0x200, &[])
        .put(STACK + 0x300, &[TEXT + OUTERMOST + 1]);
    let around = Surroundings {
        memory: &mut |at| words.read(at),
        kernel: &mut |_| None,
        foreign: &mut |at, slot, _| match (at.0, slot.0) {
            (OURS, at) if at == STACK + 0x1f8 => Some(Foreign::Inserted {
                original: GuestVirtAddr(OURS + 8),
                sp: GuestVirtAddr(STACK + 0x300),
            }),
            // The return address was in the slot that the walk has just passed, right below the stack pointer.
            (at, slot) if (at, slot) == (OURS + 8, STACK + 0x2f8) => Some(returned(LEAF)),
            _ => None,
        },
        task: None,
    };
    let trace = table().unwind(&at(LEAF, STACK, 0), around, 64);
    let expected = [LEAF, INTERRUPT + 4, LEAF, OUTERMOST + 1];
    assert_eq!(offsets(&trace), expected);
}

#[test]
fn our_code_that_stands_for_nothing_ends_the_trace() {
    let words = Words::new().put(STACK, &[OURS + 1]);
    let ours = (OURS, STACK, returned(LEAF + 9));
    let trace = walk_with(&words, &at(LEAF, STACK, 0), ours);
    assert_eq!(offsets(&trace), [LEAF]);
    assert_eq!(trace.end, TraceEnd::NotText);
}

#[test]
fn places_that_stand_for_each_other_end() {
    let words = Words::new().put(STACK, &[OURS]);
    let itself = Foreign::Returned {
        original: GuestVirtAddr(OURS),
    };
    let trace = walk_with(&words, &at(LEAF, STACK, 0), (OURS, STACK, itself));
    assert_eq!((offsets(&trace).len(), trace.end), (1, TraceEnd::NotText));
}
