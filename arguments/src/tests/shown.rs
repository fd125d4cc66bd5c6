//! How the values that a hit has taken are shown.

use probe_engine::value::Taken;
use vmprobe_proto::v1;
use vmprobe_proto::v1::value::Value as Kind;

use super::*;

/// A value as a short text: `5`, `-5`, `"text"`, `[1, 2]`, `(fault)`, or nothing.
fn text(value: &v1::Value) -> String {
    match &value.value {
        Some(Kind::Unsigned(number)) => number.to_string(),
        Some(Kind::Signed(number)) => format!("s{number}"),
        Some(Kind::Text(text)) => format!("{:?}", String::from_utf8_lossy(text)),
        Some(Kind::List(list)) => {
            let elements: Vec<_> = list.values.iter().map(text).collect();
            format!("[{}]", elements.join(", "))
        }
        Some(Kind::Fault(_)) => "(fault)".to_owned(),
        None => "nothing".to_owned(),
    }
}

fn check(cases: Vec<(Argument, &[u8], &str)>) {
    let guest = Guest::new();
    for (argument, bytes, expected) in cases {
        let compiled = guest.one(AT_ENTRY, &argument);
        let show = |taken: &[Taken]| {
            text(
                &compiled
                    .format
                    .show(Some(&guest.types), &guest.symbols, taken),
            )
        };
        let taken = [Taken::Bytes(bytes.to_vec())];
        assert_eq!(show(&taken), expected, "{}", compiled.told().definition);
        assert_eq!(show(&[Taken::Fault]), "(fault)");
        assert_eq!(show(&[]), "nothing");
    }
}

#[test]
fn numbers_are_the_lowest_bytes() {
    let word = &[0xfe, 0xff, 0xff, 0x80, 0, 0, 0, 0x80][..];
    let si = || register(6);
    check(vec![
        (argument(si()), word, "9223372039019036670"),
        (of_type(si(), BaseType::Unsigned(8)), word, "254"),
        (of_type(si(), BaseType::Signed(8)), word, "s-2"),
        (of_type(si(), BaseType::Unsigned(16)), word, "65534"),
        (of_type(si(), BaseType::Signed(32)), word, "s-2130706434"),
        (
            of_type(si(), BaseType::Signed(64)),
            word,
            "s-9223372034690514946",
        ),
        (of_type(si(), BaseType::Char), b"A       ", "65"),
        (of_type(si(), BaseType::Hex(64)), &[1, 2], "nothing"),
        (of_type(memory(0, si()), BaseType::Hex(16)), &[1, 2], "513"),
    ]);
}

#[test]
fn bits_are_shifted_and_masked() {
    let bits = BaseType::BitField {
        width: 2,
        offset: 4,
        container: 16,
    };
    let all = BaseType::BitField {
        width: 64,
        offset: 0,
        container: 64,
    };
    check(vec![
        (
            of_type(register(6), bits),
            &[0xef, 0xff, 0, 0, 0, 0, 0, 0],
            "2",
        ),
        (
            of_type(register(6), all),
            &[0xff; 8],
            "18446744073709551615",
        ),
        (of_type(memory(0, register(6)), bits), &[0x10, 0], "1"),
        (argument(path("file->bits.low")), &[0b1111_1101], "5"),
        (
            argument(path("file->bits.kind")),
            &[0b0000_1000],
            "\"SOME\"",
        ),
        (argument(path("file->bits.kind")), &[0b0001_1000], "\"BAD\""),
        // Bits 5 to 24 of four bytes.
        (
            argument(path("file->bits.across")),
            &[0xff, 0xff, 0xff, 0xff],
            "s-1",
        ),
        (argument(path("file->bits.across")), &[0x20, 0, 0, 0], "s1"),
        (
            argument(path("file->bits.across")),
            &[0x20, 0, 0],
            "nothing",
        ),
    ]);
}

#[test]
fn arrays_are_lists() {
    let si = || memory(0, register(6));
    check(vec![
        (
            array_of(si(), BaseType::Unsigned(8), Some(3)),
            &[1, 2, 3],
            "[1, 2, 3]",
        ),
        (
            array_of(si(), BaseType::Signed(16), Some(2)),
            &[0xff, 0xff, 2, 0],
            "[s-1, s2]",
        ),
        (array_of(si(), BaseType::Char, Some(1)), b"A", "[65]"),
    ]);
    let guest = Guest::new();
    let strings = guest.one(AT_ENTRY, &array_of(si(), BaseType::String, Some(3)));
    let taken = [
        Taken::Bytes(b"one".to_vec()),
        Taken::Fault,
        Taken::Bytes(vec![]),
    ];
    let shown = strings.format.show(None, &guest.symbols, &taken);
    assert_eq!(text(&shown), "[\"one\", (fault), \"\"]");
}

#[test]
fn symbols_are_names_with_offset_and_size() {
    let inside = (TEXT + 0x15).to_le_bytes();
    let outside = 0x1234_u64.to_le_bytes();
    for base in [BaseType::Symbol, BaseType::SymbolString] {
        check(vec![
            (of_type(register(6), base), &inside, "\"vfs_read+0x5/0x30\""),
            (of_type(register(6), base), &outside, "\"0x1234\""),
        ]);
    }
    let two = [inside, outside].concat();
    let array = array_of(memory(0, register(6)), BaseType::Symbol, Some(2));
    check(vec![(array, &two, "[\"vfs_read+0x5/0x30\", \"0x1234\"]")]);
}

#[test]
fn types_of_the_kernel_are_shown_as_c_has_them() {
    let path_bytes = [0x10_u64.to_le_bytes(), 0x20_u64.to_le_bytes()].concat();
    check(vec![
        (
            argument(path("file->f_inode->i_kind")),
            &[0xff; 4],
            "\"BAD\"",
        ),
        (
            argument(path("file->f_inode->i_kind")),
            &[7, 0, 0, 0],
            "\"7\"",
        ),
        (
            argument(path("file->f_path")),
            &path_bytes,
            "\"{.mnt = 0x10, .dentry = 0x20}\"",
        ),
        (
            argument(path("file->numbers")),
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            "\"{1}\"",
        ),
        (argument(path("file->name")), b"etc", "\"etc\""),
        (argument(path("file->ok")), &[1], "1"),
    ]);
    let huge = Guest::new().one(AT_ENTRY, &argument(path("file->huge")));
    let guest = Guest::new();
    let taken = [Taken::Bytes(vec![0; 1024])];
    let shown = huge.format.show(Some(&guest.types), &guest.symbols, &taken);
    assert_eq!(text(&shown), "\"{...}\"");
    // Without the types the bytes are there all the same.
    let taken = [Taken::Bytes(vec![1, 0xff])];
    assert_eq!(
        text(&huge.format.show(None, &guest.symbols, &taken)),
        "\"01ff\""
    );
}

#[test]
fn a_structure_in_registers_is_put_together_of_their_words() {
    let guest = Guest::new();
    let function = Function {
        name: "in_words",
        ..AT_ENTRY
    };
    let low = 0x0003_0002_0001_0000_u64.to_le_bytes();
    let high = 0x5501_u64.to_le_bytes();
    let taken = [low, high].map(|word| Taken::Bytes(word.to_vec()));
    let shown = |name: &str, taken: &[Taken]| {
        let compiled = guest.one(function, &argument(path(name)));
        let value = compiled
            .format
            .show(Some(&guest.types), &guest.symbols, taken);
        text(&value)
    };
    let pointer = shown("pointer", &taken);
    assert!(
        pointer.contains("0x3000200010000") && pointer.contains("is_kernel"),
        "{pointer}"
    );
    let half = shown("parts.half", &taken[..1]);
    assert!(half.contains(".b=2") || half.contains("b = 2"), "{half}");
    assert_eq!(shown("parts.a", &taken[..1]), "1");
    assert_eq!(shown("parts.half.c", &taken[..1]), "3");
    assert_eq!(shown("pointer", &[]), "nothing");
    assert_eq!(shown("pointer", &[Taken::Fault]), "(fault)");
}

#[test]
fn a_text_that_is_given_needs_no_value() {
    let guest = Guest::new();
    let constant = guest.one(AT_ENTRY, &argument(value(Fetch::Text("hello".to_owned()))));
    assert!(constant.values.is_empty());
    let shown = constant.format.show(None, &guest.symbols, &[]);
    assert_eq!(text(&shown), "\"hello\"");
    assert_eq!(constant.told().definition, "\\\"hello\"");
}
