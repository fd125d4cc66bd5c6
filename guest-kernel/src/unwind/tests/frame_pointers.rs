use super::*;

fn text(offset: u64) -> u64 {
    TEXT + offset
}

/// An instruction that is no part of a prologue: nop.
const BODY: u64 = 0x9090_9090_9090_9090;

fn check(words: &Words, start: &Registers, expected: &[u64], end: TraceEnd) {
    let trace = walk(&unwinder(None), words, start);
    assert_eq!(offsets(&trace), expected);
    assert_eq!((trace.end, trace.guessed), (end, false));
}

#[test]
fn callers_are_found_up_to_where_entry_code_cleared_rbp() {
    let words = Words::new()
        .put(text(0x100), &[BODY])
        .put(STACK + 0x40, &[STACK + 0x80, text(0x201)])
        .put(STACK + 0x80, &[0, text(0x301)]);
    let start = at(0x100, STACK, STACK + 0x40);
    check(&words, &start, &[0x100, 0x201, 0x301], TraceEnd::Complete);
}

#[test]
fn a_long_chain_on_one_stack_is_followed() {
    let mut words = Words::new();
    for i in 0..40 {
        let frame = STACK + i * 0x20;
        words = words.put(frame, &[frame + 0x20, text(0x200 + i)]);
    }
    let words = words.put(STACK + 40 * 0x20, &[0, text(0x301)]);
    let trace = walk(&unwinder(None), &words, &at(0x100, STACK - 8, STACK));
    assert_eq!((trace.addresses.len(), trace.end), (42, TraceEnd::Complete));
}

#[test]
fn a_function_without_its_frame_yet_has_its_return_address_near_rsp() {
    let instruction = |bytes: &[u8]| {
        let mut word = BODY.to_le_bytes();
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    for (bytes, above) in [
        (&[0xf3, 0x0f, 0x1e, 0xfa][..], 0),
        (&[0x55], 0),
        (&[0x48, 0x89, 0xe5], 8),
        (&[0xc3], 0),
    ] {
        let words = Words::new()
            .put(text(0x100), &[instruction(bytes)])
            .put(STACK, &[STACK + 0x40])
            .put(STACK + above, &[text(0x181)])
            .put(STACK + 0x40, &[0, text(0x201)]);
        let start = at(0x100, STACK, STACK + 0x40);
        check(&words, &start, &[0x100, 0x181, 0x201], TraceEnd::Complete);
    }
}

#[test]
fn an_interrupt_keeps_its_registers_at_a_marked_rbp() {
    let words = Words::new()
        .put(text(0x100), &[BODY])
        .put(text(0x200), &[BODY])
        .put(STACK + 0x40, &[STACK + 0x51, text(0x181)])
        .regs(
            STACK + 0x50,
            KERNEL_CS,
            text(0x200),
            STACK + 0x200,
            &[(32, STACK + 0x300)],
        )
        .put(STACK + 0x300, &[0, text(0x301)]);
    let start = at(0x100, STACK, STACK + 0x40);
    check(
        &words,
        &start,
        &[0x100, 0x181, 0x200, 0x301],
        TraceEnd::Complete,
    );
    let words = words.put(STACK + 0x50 + 136, &[USER_CS]);
    check(&words, &start, &[0x100, 0x181], TraceEnd::Complete);
}

#[test]
fn frames_that_make_no_sense_end_the_trace() {
    for (bp, words, len, end) in [
        (0, Words::new(), 1, TraceEnd::Complete),
        (STACK + 0x40, Words::new(), 1, TraceEnd::NotThere),
        (
            STACK + 0x40,
            Words::new().put(STACK + 0x40, &[STACK + 0x80, 0x40_1000]),
            1,
            TraceEnd::NotText,
        ),
        (
            STACK,
            Words::new().put(STACK, &[STACK, text(0x201)]),
            9,
            TraceEnd::Circular,
        ),
    ] {
        let trace = walk(&unwinder(None), &words, &at(0x100, STACK, bp));
        assert_eq!(trace.end, end);
        assert!(trace.addresses.len().abs_diff(len) <= 1, "{trace:?}");
    }
}
