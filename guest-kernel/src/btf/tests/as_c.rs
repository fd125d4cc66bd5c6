//! Types and values as C writes them.

use proptest::prelude::*;

use super::super::synthetic::Builder;
use super::super::{Btf, Shape, TypeId};

/// `struct thing` and what it is made of.
fn section() -> Vec<u8> {
    let mut b = Builder::new();
    let int = b.signed("int", 4);
    let unsigned = b.int("unsigned int", 4);
    let long = b.int("long unsigned int", 8);
    let wide = b.int("__int128 unsigned", 16);
    let char = b.int("char", 1);
    let byte = b.int("unsigned char", 1);
    let bool = b.boolean();
    let float = b.record("float", 16, 0, 4, &[]);
    let mode = b.typedef("fmode_t", unsigned);
    let constant = b.constant(char);
    let text = b.pointer(constant);
    let fixed = b.constant(text);
    let kind = b.enumeration("kind", &[("NONE", 0), ("SOME", 1), ("BAD", -1)]);
    let large = b.enumeration64("large", &[("HUGE", 1 << 40)]);
    let secret = b.forward("secret");
    let secret = b.pointer(secret);
    let name = b.array(char, 8);
    let raw = b.array(byte, 6);
    let row = b.array(int, 3);
    let rows = b.array(row, 2);
    let open = b.prototype(&[("", text), ("", int), ("", 0)], int);
    let open = b.pointer(open);
    let row_pointer = b.pointer(row);
    let point = b.structure("point", 8, &[("x", int, 0), ("y", int, 4)]);
    let inner = b.structure("", 8, &[("low", unsigned, 0), ("high", unsigned, 4)]);
    let either = b.union("", 8, &[("", inner, 0), ("all", long, 0)]);
    let thing = b.structure(
        "thing",
        144,
        &[
            ("f_mode", mode, 0),
            ("count", int, 4),
            ("name", name, 8),
            ("raw", raw, 16),
            ("ok", bool, 22),
            ("kind", kind, 24),
            ("where", point, 28),
            ("rows", rows, 36),
            ("", either, 64),
            ("secret", secret, 72),
            ("large", large, 80),
            ("f", float, 88),
            ("wide", wide, 96),
            ("open", open, 112),
            ("fixed", fixed, 120),
            ("row", row_pointer, 128),
        ],
    );
    b.bit_fields(
        "bits",
        8,
        &[("a", int, 0, 3), ("b", unsigned, 3, 12), ("k", kind, 20, 2)],
    );
    b.structure("", 4, &[("x", int, 0)]);
    let unnamed = b.structure("", 4, &[("counter", int, 0)]);
    b.typedef("atomic_t", unnamed);
    let pointer = b.pointer(thing);
    b.function_returning("look", &[("thing", pointer), ("", int)], text);
    b.function("format", &[("form", text), ("", 0)]);
    b.bytes()
}

fn btf() -> Btf {
    Btf::parse(&section()).unwrap()
}

fn id(btf: &Btf, name: &str) -> TypeId {
    btf.type_named(name).unwrap()
}

#[test]
fn a_declaration_has_the_offset_and_size_of_each_member() {
    let expected = "\
struct thing {
\tfmode_t f_mode;                         /*     0     4 */
\tint count;                              /*     4     4 */
\tchar name[8];                           /*     8     8 */
\tunsigned char raw[6];                   /*    16     6 */
\t_Bool ok;                               /*    22     1 */
\tenum kind kind;                         /*    24     4 */
\tstruct point where;                     /*    28     8 */
\tint rows[2][3];                         /*    36    24 */
\tunion {
\t\tstruct {
\t\t\tunsigned int low;       /*    64     4 */
\t\t\tunsigned int high;      /*    68     4 */
\t\t};                              /*    64     8 */
\t\tlong unsigned int all;          /*    64     8 */
\t};                                      /*    64     8 */
\tstruct secret *secret;                  /*    72     8 */
\tenum large large;                       /*    80     8 */
\tfloat f;                                /*    88     4 */
\t__int128 unsigned wide;                 /*    96    16 */
\tint (*open)(const char *, int, ...);    /*   112     8 */
\tconst char *const fixed;                /*   120     8 */
\tint (*row)[3];                          /*   128     8 */
}; /* size: 144 */
";
    for name in ["struct thing", "thing"] {
        assert_eq!(btf().declaration(name).unwrap(), expected);
    }
}

#[test]
fn other_types_have_declarations_too() {
    for (name, expected) in [
        (
            "bits",
            "struct bits {\n\
             \tint a:3;                                /*     0: 0  3 */\n\
             \tunsigned int b:12;                      /*     0: 3 12 */\n\
             \tenum kind k:2;                          /*     2: 4  2 */\n\
             }; /* size: 8 */\n",
        ),
        (
            "enum kind",
            "enum kind {\n\tNONE = 0,\n\tSOME = 1,\n\tBAD = -1,\n}; /* size: 4 */\n",
        ),
        (
            "enum large",
            "enum large {\n\tHUGE = 1099511627776,\n}; /* size: 8 */\n",
        ),
        (
            "atomic_t",
            "typedef struct {\n\
             \tint counter;                            /*     0     4 */\n\
             } atomic_t; /* size: 4 */\n",
        ),
        ("fmode_t", "typedef unsigned int fmode_t;\n"),
        ("int", "int; /* size: 4 */\n"),
        ("long  unsigned int", "long unsigned int; /* size: 8 */\n"),
    ] {
        assert_eq!(btf().declaration(name).as_deref(), Ok(expected), "{name}");
    }
    for name in ["", "none", "union thing", "struct", "look", "secret"] {
        assert!(btf().declaration(name).is_err(), "{name}");
    }
}

#[test]
fn types_are_found_by_patterns() {
    let btf = btf();
    for (pattern, expected) in [
        ("?ode*", &[][..]),
        ("fmode_?", &["fmode_t"]),
        ("p*", &["struct point"]),
        ("struct *", &["struct bits", "struct point", "struct thing"]),
        ("enum *", &["enum kind", "enum large"]),
    ] {
        assert_eq!(btf.types_matching(pattern, 9), expected, "{pattern}");
    }
    assert_eq!(btf.types_matching("*", 2).len(), 2);
}

#[test]
fn a_prototype_tells_types_and_what_is_returned() {
    let btf = btf();
    let look = btf.prototype("look").unwrap();
    let parameters: Vec<_> = look
        .parameters
        .iter()
        .map(|parameter| btf.declarator(parameter.type_id, parameter.name))
        .collect();
    assert_eq!(parameters, ["struct thing *thing", "int"]);
    assert_eq!(btf.type_text(look.returns), "const char *");
    assert!(!look.variadic);
    let format = btf.prototype("format").unwrap();
    assert_eq!((format.parameters.len(), format.variadic), (1, true));
    assert_eq!(format.returns, TypeId::VOID);
    assert_eq!(btf.prototype("thing"), None);
}

#[test]
fn members_are_walked_to_with_their_types_and_bits() {
    let btf = btf();
    let thing = id(&btf, "thing");
    let high = btf.field(thing, "high").unwrap();
    assert_eq!((high.name, high.bit_offset, high.bits), ("high", 68 * 8, 0));
    assert_eq!(btf.type_text(high.type_id), "unsigned int");
    let k = btf.field(id(&btf, "bits"), "k").unwrap();
    assert_eq!((k.bit_offset, k.bits), (20, 2));
    assert_eq!(btf.field(thing, "x"), None);
    assert_eq!(btf.field(id(&btf, "int"), "x"), None);
    let names = btf.field_names(thing);
    assert!(names.contains(&"low") && names.contains(&"rows") && !names.contains(&""));
    let Some(Shape::Pointer(to)) = btf.shape(btf.field(thing, "secret").unwrap().type_id) else {
        panic!("a pointer");
    };
    assert_eq!(btf.shape(to), Some(Shape::Incomplete));
}

#[test]
fn a_value_is_written_as_c_has_it() {
    let btf = btf();
    let mut bytes = [0_u8; 144];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &0x1d_u32.to_le_bytes());
    put(4, &(-5_i32).to_le_bytes());
    put(8, b"a\"b\0zzzz");
    put(16, &[1, 2, 0, 3, 0, 0]);
    put(22, &[1]);
    put(24, &(-1_i32).to_le_bytes());
    put(32, &7_u32.to_le_bytes());
    put(36 + 16, &9_u32.to_le_bytes());
    put(68, &2_u32.to_le_bytes());
    put(72, &0xffff_8880_0000_1000_u64.to_le_bytes());
    put(80, &(1_u64 << 40).to_le_bytes());
    put(88, &1.5_f32.to_le_bytes());
    put(96 + 8, &[1]);
    let thing = id(&btf, "thing");
    assert_eq!(
        btf.value_text(thing, &bytes, 1000),
        "{.f_mode = 0x1d, .count = -5, .name = \"a\\\"b\", .raw = {1, 2, 0, 3}, .ok = true, \
         .kind = BAD, .where = {.y = 7}, .rows = {{}, {0, 9}}, .high = 2, .all = 8589934592, \
         .secret = 0xffff888000001000, .large = HUGE, .f = 1.5, .wide = 0x10000000000000000}"
    );
    // Cut off, by its length and by its bytes.
    let short = btf.value_text(thing, &bytes, 60);
    assert_eq!(
        short,
        "{.f_mode = 0x1d, .count = -5, .name = \"a\\\"b\", ...}"
    );
    for (len, expected) in [
        (6, "{.f_mode = 0x1d, .count = ...}"),
        (8, "{.f_mode = 0x1d, .count = -5, ...}"),
    ] {
        assert_eq!(btf.value_text(thing, &bytes[..len], 1000), expected);
    }
    assert_eq!(btf.value_text(thing, &[0; 144], 1000), "{}");
}

#[test]
fn single_values_are_written_as_c_has_them() {
    let btf = btf();
    for (name, bytes, expected) in [
        ("int", &[0xff; 4][..], "-1"),
        ("int", &[1, 2], "..."),
        ("unsigned int", &[0xff; 4], "4294967295"),
        ("_Bool", &[2], "true"),
        ("kind", &[1, 0, 0, 0], "SOME"),
        ("kind", &[9, 0, 0, 0], "9"),
        ("kind", &[0xfe, 0xff, 0xff, 0xff], "-2"),
        ("float", &[0, 0, 0x20, 0x41], "10"),
        // a: 3 bits signed, b: 12 bits, k: 2 bits, signed.
        (
            "bits",
            &[0b1000_0101, 0, 0x30, 0, 0, 0, 0, 0],
            "{.a = -3, .b = 16, .k = BAD}",
        ),
    ] {
        assert_eq!(
            btf.value_text(id(&btf, name), bytes, 100),
            expected,
            "{name}"
        );
    }
    let thing = id(&btf, "thing");
    for (member, bytes, expected) in [
        ("name", &b"filename"[..], "\"filename\""),
        ("name", b"\x01\0\0\0\0\0\0\0", "{1}"),
        ("raw", b"text\0\0", "\"text\""),
        ("raw", b"texts!", "{116, 101, 120, 116, 115, 33}"),
        ("secret", &[0x10, 0, 0, 0, 0, 0, 0, 0], "0x10"),
    ] {
        let of = btf.field(thing, member).unwrap().type_id;
        assert_eq!(
            btf.value_text(of, bytes, 100),
            expected,
            "{member} {bytes:?}"
        );
    }
}

#[test]
fn structures_deep_in_one_another_are_left_out() {
    let mut b = Builder::new();
    let int = b.int("int", 4);
    let mut unnamed = b.structure("", 4, &[("x", int, 0)]);
    let mut named = unnamed;
    for _ in 0..20 {
        unnamed = b.structure("", 4, &[("", unnamed, 0), ("y", int, 0)]);
        named = b.structure("", 4, &[("s", named, 0)]);
    }
    b.structure("outer", 8, &[("", unnamed, 0), ("s", named, 4)]);
    let btf = Btf::parse(&b.bytes()).unwrap();
    let text = btf.value_text(id(&btf, "outer"), &[1, 0, 0, 0, 2, 0, 0, 0], 1000);
    assert!(text.starts_with("{.y = 1, "), "{text}");
    let s = ".s = {".repeat(7);
    assert!(
        text.ends_with(&format!("{s}.s = {{...}}{}", "}".repeat(8))),
        "{text}"
    );
}

#[test]
fn what_damaged_types_say_ends_all_the_same() {
    let mut b = Builder::new();
    // 1: an array of itself; 2: a structure of itself without a name; 3: a pointer to itself; 4: a function
    // that takes itself.
    b.array(1, u32::MAX);
    let members = vec![("", 2, 0); 0xffff];
    b.structure("inside", 8, &members);
    b.record("", 2, 0, 3, &[]);
    b.prototype(&[("", 4), ("", 4), ("", 4)], 4);
    let nothing = b.structure("", 0, &[]);
    let many = b.array(nothing, u32::MAX);
    b.structure(
        "holder",
        8,
        &[
            ("a", 1, 0),
            ("b", 2, 0),
            ("c", 3, 0),
            ("d", 4, 0),
            ("e", many, 0),
        ],
    );
    let btf = Btf::parse(&b.bytes()).unwrap();
    for name in ["inside", "holder"] {
        let _ = btf.declaration(name);
        let text = btf.value_text(id(&btf, name), &[0xff; 64], 4096);
        assert!(text.len() <= 4096, "{}", text.len());
        let _ = btf.field_names(id(&btf, name));
        assert_eq!(btf.field(id(&btf, name), "x"), None);
    }
}

proptest! {
    #[test]
    fn no_damage_makes_c_text_panic_or_grow(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        most in 0_usize..300,
    ) {
        let mut section = section();
        for (at, byte) in damage {
            let at = at.index(section.len());
            section[at] = byte;
        }
        if let Ok(btf) = Btf::parse(&section) {
            let all = btf.types_matching("*", 100);
            for name in all {
                let _ = btf.declaration(&name);
                if let Some(id) = btf.type_named(&name) {
                    let text = btf.value_text(id, &bytes, most);
                    prop_assert!(text.len() <= most.max(24), "{text}");
                    let _ = btf.field(id, "high");
                    let _ = btf.field_names(id);
                    let _ = btf.enumerator(id, 1);
                }
            }
            let _ = btf.prototype("look");
        }
    }
}
