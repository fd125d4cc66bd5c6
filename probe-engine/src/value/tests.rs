use guest_state::Registers;

use super::*;

const ANY: fn(i64) -> Load = |offset| Load {
    offset,
    space: Space::Any,
};

fn value(base: Base, loads: &[Load], take: Take) -> Value {
    Value {
        base,
        loads: loads.to_vec(),
        take,
    }
}

/// Memory of two pages at 0x1000, whose bytes are their offsets, and nothing else.
fn read(at: u64, into: &mut [u8]) -> bool {
    let end = at.checked_add(into.len() as u64);
    let inside = at >= 0x1000 && end.is_some_and(|end| end <= 0x3000);
    if inside {
        for (byte, at) in into.iter_mut().zip(at..) {
            *byte = at as u8;
        }
    }
    inside
}

fn taken(value: &Value) -> Option<Vec<u8>> {
    let registers = Registers {
        rdi: 0x1010,
        rflags: 0x246,
        rip: 0x77,
        ..Registers::default()
    };
    let entry = Registers {
        rdi: 0x1020,
        ..Registers::default()
    };
    let bases = Bases {
        registers: &registers,
        entry: Some(&entry),
        task: None,
        cpu: 3,
        interrupt_stack: Some(0x2ff8),
    };
    take(value, &bases, &mut read)
}

#[test]
fn a_value_begins_at_its_base_and_follows_its_pointers() {
    let word = |value: u64| Some(value.to_le_bytes().to_vec());
    let cases = [
        (value(Base::Register(7), &[], Take::Word), word(0x1010)),
        (value(Base::EntryRegister(7), &[], Take::Word), word(0x1020)),
        (value(Base::Flags, &[], Take::Word), word(0x246)),
        (value(Base::InstructionPointer, &[], Take::Word), word(0x77)),
        (value(Base::Cpu, &[], Take::Word), word(3)),
        (value(Base::Task, &[], Take::Word), None),
        (
            value(Base::Register(7), &[ANY(-8)], Take::Word),
            word(0x0f0e_0d0c_0b0a_0908),
        ),
        (
            value(Base::Register(7), &[ANY(0), ANY(0)], Take::Word),
            None,
        ),
        (
            value(
                Base::Constant(0x1ffe),
                &[],
                Take::Memory { at: ANY(0), len: 4 },
            ),
            Some(vec![0xfe, 0xff, 0, 1]),
        ),
        (
            value(
                Base::Constant(0x2fff),
                &[],
                Take::Memory { at: ANY(0), len: 2 },
            ),
            None,
        ),
    ];
    for (value, expected) in cases {
        assert_eq!(taken(&value), expected, "{value:x?}");
    }
}

#[test]
fn a_text_ends_at_its_nul_or_its_bound_and_needs_no_memory_behind_that() {
    let text = |at: u64, most: u16| {
        let take = Take::Text { at: ANY(0), most };
        taken(&value(Base::Constant(at), &[], take))
    };
    assert_eq!(text(0x10fd, 64), Some(vec![0xfd, 0xfe, 0xff]));
    assert_eq!(text(0x2ffd, 3), Some(vec![0xfd, 0xfe, 0xff]));
    assert_eq!(text(0x2ffd, 4), None);
    assert_eq!(text(0x1100, 64), Some(Vec::new()));
    assert_eq!(text(0, 64), None);
}

#[test]
fn a_stack_for_interrupts_is_taken_up_to_its_top_word() {
    let at = |offset, most| {
        let at = ANY(offset);
        taken(&value(Base::Register(7), &[], Take::Stack { at, most })).unwrap()
    };
    // From the first address to the end of the stack, whose last word leads nowhere here.
    let bytes = at(0x1fd0, 64);
    let [(start, first), (left, second)] = stack_pieces(0x2fe0, &bytes);
    assert_eq!((start, first.len()), (0x2fe0, 0x20));
    assert_eq!((left, second.len()), (0xffff_fefd_fcfb_faf9 << 8 | 0xf8, 0));
    // It does not reach the top word.
    let bytes = at(0x1fd0, 0x20);
    assert_eq!(stack_pieces(0, &bytes)[0].1.len(), 0x20);
    // It begins behind it.
    let bytes = at(0x1ff0, 64);
    assert_eq!(stack_pieces(0, &bytes)[0].1.len(), 0);
}

#[test]
fn pieces_of_a_stack_are_within_what_was_recorded() {
    let [(start, first), (left, second)] = stack_pieces(5, &[]);
    assert_eq!((start, left), (5, 0));
    assert!(first.is_empty() && second.is_empty());
    let mut bytes = 8_u64.to_le_bytes().to_vec();
    bytes.extend(0x5000_u64.to_le_bytes());
    bytes.extend([1, 2, 3]);
    let [(_, first), (left, second)] = stack_pieces(5, &bytes);
    assert_eq!((first.len(), left, second), (8, 0x5000, &[1, 2, 3][..]));
    bytes[0] = 0xff;
    let [(_, first), (_, second)] = stack_pieces(5, &bytes);
    assert_eq!((first.len(), second.len()), (11, 0));
}

#[test]
fn a_user_s_pointer_into_the_kernel_is_not_followed() {
    let user = Load {
        offset: 0,
        space: Space::User,
    };
    let at = |address| {
        let take = Take::Memory { at: user, len: 1 };
        value(Base::Constant(address), &[], take)
    };
    let bases = Bases {
        registers: &Registers::default(),
        entry: None,
        task: None,
        cpu: 0,
        interrupt_stack: None,
    };
    let mut everything = |_: u64, _: &mut [u8]| true;
    assert!(take(&at(0x7fff_ffff_f000), &bases, &mut everything).is_some());
    assert!(take(&at(1 << 63), &bases, &mut everything).is_none());
}

#[test]
fn what_is_encoded_is_decoded_and_what_is_damaged_is_refused() {
    let values = [
        value(Base::Cpu, &[], Take::Word),
        value(
            Base::Cpu,
            &[],
            Take::Text {
                at: ANY(0),
                most: 11,
            },
        ),
        value(Base::Cpu, &[], Take::Memory { at: ANY(0), len: 3 }),
    ];
    assert_eq!(encoded_max(&values), 16 + 24 + 16);
    let mut encoder = Encoder::default();
    encoder.push(Some(&[1; 8]));
    encoder.push(Some(b"hello, you"));
    encoder.push(None);
    let recorded = encoder.end();
    let expected = [
        Taken::Bytes(vec![1; 8]),
        Taken::Bytes(b"hello, you".to_vec()),
        Taken::Fault,
    ];
    assert_eq!(recorded.iter().collect::<Vec<_>>(), expected);

    let mut words = recorded.0.to_vec();
    words.push([9; 8]);
    let mut left = &*words;
    assert_eq!(
        Recorded::split_off(&values, &mut left),
        Some(Recorded(&*recorded.0))
    );
    assert_eq!(left, [[9; 8]]);
    for (damaged, status) in [(0, 9), (0, 1 << 16), (2, 12), (5, 5)] {
        let mut words = recorded.0.to_vec();
        words[damaged] = u64::to_le_bytes(status);
        assert_eq!(
            Recorded::split_off(&values, &mut &*words),
            None,
            "{damaged}"
        );
    }
    for len in 0..recorded.0.len() {
        assert_eq!(Recorded::split_off(&values, &mut &recorded.0[..len]), None);
    }
    let chosen = recorded.choose(&values, &[values[2].clone(), values[0].clone()]);
    let chosen: Vec<_> = chosen.iter().collect();
    assert_eq!(chosen, [Taken::Fault, Taken::Bytes(vec![1; 8])]);
}
