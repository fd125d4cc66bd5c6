use super::*;

const LEAF: u64 = 0x100;
const OUTERMOST: u64 = 0x400;
const INTERRUPT: u64 = 0x500;
/// Our code.
const OURS: u64 = 0xffff_ffff_1000_0000;

fn table() -> Unwinder {
    unwinder(Some(orc(&[
        (LEAF, OrcEntry::CALLED),
        (OUTERMOST, END),
        (INTERRUPT, entry(Frame::Registers, Base::Sp, 8)),
    ])))
}

/// Unwinds with one place of ours: its address, the slot that it must be asked for, and what it stands for.
fn walk_with(
    words: &Words,
    start: &Registers,
    (address, slot, foreign): (u64, u64, Foreign),
) -> StackTrace {
    let around = Surroundings {
        memory: &mut |at| words.read(at),
        foreign: &mut |at, asked| {
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
