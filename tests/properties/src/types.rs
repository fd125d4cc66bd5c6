//! Types of damaged kernels, and values of them.

use guest_kernel::btf::synthetic::Builder;
use guest_kernel::btf::{Btf, TypeId};

use crate::input::Input;

/// Longest text of a value.
const MOST: usize = 300;

/// Checks that reading any types of a kernel ends, and that writing any of them, and any value of them, as C ends too.
/// A value's text keeps to its limit.
///
/// The bytes: whether they are the types themselves, or changes to some types, as offsets and values.
///
/// # Panics
/// If that doesn't hold.
pub fn types(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut section = section();
    if input.byte() % 4 == 0 {
        section = input.0.to_vec();
    } else {
        while !input.0.is_empty() {
            let (at, value) = (usize::from(input.short()), input.byte());
            let len = section.len();
            section[at % len] = value;
        }
    }
    let Ok(types) = Btf::parse(&section) else {
        return;
    };
    for name in types.types_matching("*", 50) {
        let _any = types.declaration(&name);
        if let Some(id) = types.type_named(&name) {
            ask(&types, id, bytes);
        }
    }
    if let Some(function) = types.prototype("look") {
        for id in function
            .parameters
            .iter()
            .map(|parameter| parameter.type_id)
        {
            ask(&types, id, bytes);
        }
    }
}

fn ask(types: &Btf, id: TypeId, bytes: &[u8]) {
    let text = types.value_text(id, bytes, MOST);
    assert!(text.len() <= MOST, "{text}");
    let _any = types.type_text(id);
    let _any = types.field(id, "high");
    let _any = types.field_names(id);
    let _any = types.enumerator(id, 1);
}

fn section() -> Vec<u8> {
    let mut b = Builder::new();
    let int = b.signed("int", 4);
    let char = b.int("char", 1);
    let constant = b.constant(char);
    let text = b.pointer(constant);
    let name = b.array(char, 8);
    let row = b.array(int, 3);
    let rows = b.array(row, 2);
    let kind = b.enumeration("kind", &[("NONE", 0), ("BAD", -1)]);
    let large = b.enumeration64("large", &[("HUGE", 1 << 40)]);
    let open = b.prototype(&[("", text), ("", 0)], int);
    let open = b.pointer(open);
    let inner = b.structure("", 8, &[("low", int, 0), ("high", int, 4)]);
    let either = b.union("", 8, &[("", inner, 0), ("kind", kind, 0)]);
    let bits = b.bit_fields("bits", 8, &[("a", int, 0, 3), ("b", kind, 13, 16)]);
    let members = [
        ("name", name, 0),
        ("rows", rows, 8),
        ("", either, 32),
        ("bits", bits, 40),
        ("large", large, 48),
        ("open", open, 56),
    ];
    let thing = b.structure("thing", 64, &members);
    let pointer = b.pointer(thing);
    let alias = b.typedef("thing_t", pointer);
    b.function_returning("look", &[("thing", alias), ("text", text)], int);
    b.bytes()
}
