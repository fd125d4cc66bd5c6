//! What is refused, why, and where.

use proptest::prelude::*;

use super::*;

fn refused(function: Function<'_>, argument: &Argument) -> String {
    let error = Guest::new().compile(function, argument).unwrap_err();
    error.to_string()
}

fn check(function: Function<'_>, cases: Vec<(Argument, &str)>) {
    for (argument, expected) in cases {
        let found = refused(function, &argument);
        assert!(
            found.contains(expected),
            "{argument:?}\n{found}\n{expected}"
        );
    }
}

#[test]
fn what_the_place_does_not_have_is_refused() {
    check(
        AT_ENTRY,
        vec![(argument(path("$retval")), "only for return probes")],
    );
    check(
        INSIDE,
        vec![
            (argument(value(Fetch::Argument(1))), "at a function's entry"),
            (argument(path("count")), "at a function's entry"),
            (argument(path("$arg1->f_pos")), "at a function's entry"),
            (
                argument(value(Fetch::AllArguments)),
                "at a function's entry",
            ),
        ],
    );
    check(
        Function {
            place: Place::Return,
            ..MANY
        },
        vec![
            (argument(path("h")), "argument 8 is on the stack"),
            (
                of_type(path("$arg7"), BaseType::Hex(64)),
                "argument 7 is on the stack",
            ),
            (
                argument(value(Fetch::AllArguments)),
                "argument 7 is on the stack",
            ),
        ],
    );
    check(
        Function {
            name: "nothing",
            ..AT_RETURN
        },
        vec![(argument(path("$retval")), "nothing returns nothing")],
    );
}

#[test]
fn numbers_that_are_not_there_are_refused() {
    check(
        UNKNOWN,
        vec![
            (
                argument(value(Fetch::Argument(0))),
                "no argument of number 0",
            ),
            (
                argument(value(Fetch::Argument(10000))),
                "no argument of number 10000",
            ),
            (
                argument(value(Fetch::StackEntry(10000))),
                "no word of number 10000",
            ),
            (argument(register(16)), "no general register of number 16"),
        ],
    );
    check(
        AT_ENTRY,
        vec![(
            argument(value(Fetch::Argument(5))),
            "has no parameter \"$arg5\"; it has file, buf, count, pos",
        )],
    );
}

#[test]
fn names_need_types() {
    let no_types = "no BTF for unknown: use $arg1 or %di";
    check(
        UNKNOWN,
        vec![
            (argument(path("count")), no_types),
            (argument(path("file->f_pos")), no_types),
            (argument(value(Fetch::AllArguments)), no_types),
            (argument(path("$arg1->f_pos")), "isn't known"),
        ],
    );
    let in_module = Function {
        module: "ext4",
        ..AT_ENTRY
    };
    check(
        in_module,
        vec![(
            argument(path("count")),
            "no BTF for ext4:vfs_read: load the module first",
        )],
    );
    let address = Function {
        name: "",
        ..AT_ENTRY
    };
    check(
        address,
        vec![(argument(path("count")), "no BTF for this address")],
    );
    let guest = Guest::new();
    let known = Known {
        types: None,
        ..guest.known()
    };
    let error = compile(&argument(path("count")), 0, &AT_ENTRY, &known).unwrap_err();
    assert!(error.to_string().contains("no BTF for vfs_read"), "{error}");
}

#[test]
fn names_that_are_not_there_are_refused_with_similar_ones() {
    check(
        AT_ENTRY,
        vec![
            (
                argument(path("cuont")),
                "no parameter \"cuont\"; did you mean count?",
            ),
            (
                argument(path("x")),
                "no parameter \"x\"; it has file, buf, count, pos",
            ),
            (
                argument(path("file->inode")),
                "\"const struct file\" has no member \"inode\"; did you mean f_inode?",
            ),
            (
                argument(path("file->f_path.dentry->d_nmae")),
                "\"struct dentry\" has no member \"d_nmae\"; did you mean d_name?",
            ),
            (
                argument(symbol("jifies_64", 0)),
                "no symbol \"jifies_64\"; did you mean jiffies_64?",
            ),
            (argument(symbol("twice", 0)), "are called \"twice\""),
            (
                argument(symbol("runqueues", 0)),
                "runqueues is a per-CPU variable",
            ),
        ],
    );
    let nothing = Function {
        name: "nothing",
        ..AT_ENTRY
    };
    check(
        nothing,
        vec![(argument(path("x")), "no parameter \"x\"; it has none")],
    );
}

#[test]
fn steps_that_the_types_do_not_have_are_refused() {
    check(
        AT_ENTRY,
        vec![
            (
                argument(path("file.f_pos")),
                "is no struct or union; use `->`",
            ),
            (
                argument(path("file->f_path->mnt")),
                "\"struct path\" is no pointer; use `.`",
            ),
            (argument(path("file->f_inode.i_ino")), "use `->`"),
            (argument(path("count->x")), "\"size_t\" is no pointer"),
            (argument(path("pos->x")), "\"void\" is no struct"),
            (
                argument(path("file->numbers->x")),
                "\"int [3]\" is no pointer",
            ),
            (
                argument(path("file->secret->x")),
                "don't tell what is in \"struct secret\"",
            ),
            (argument(path("file->rest")), "\"int []\" can't be shown"),
            (argument(member(register(7), true, "x")), "isn't known"),
            (
                argument(member(memory(0, path("file")), false, "x")),
                "isn't known",
            ),
        ],
    );
    check(
        Function {
            name: "in_memory",
            ..AT_ENTRY
        },
        vec![
            (
                argument(path("big.rest")),
                "parameter \"big\" is \"struct big\", passed by value on the stack",
            ),
            (
                argument(path("packed")),
                "parameter \"big\" is \"struct big\"",
            ),
            (argument(path("f")), "parameter \"big\""),
            (argument(value(Fetch::AllArguments)), "parameter \"big\""),
        ],
    );
    check(
        Function {
            name: "in_words",
            ..AT_RETURN
        },
        vec![
            (argument(path("pair.low")), "argument 6"),
            (
                argument(path("pointer->is_kernel")),
                "is no pointer; use `.`",
            ),
            (
                of_type(path("parts.half.c"), BaseType::Hex(64)),
                "b64@48/64 is no bit field",
            ),
        ],
    );
}

#[test]
fn types_that_do_not_fit_are_refused() {
    let bits = |width, offset, container| BaseType::BitField {
        width,
        offset,
        container,
    };
    let si = || register(6);
    check(
        UNKNOWN,
        vec![
            (
                of_type(value(Fetch::StackEntry(0)), BaseType::String),
                "string needs memory",
            ),
            (
                of_type(value(Fetch::Flags), BaseType::String),
                "string needs memory",
            ),
            (
                array_of(si(), BaseType::Hex(8), Some(2)),
                "an array needs memory",
            ),
            (
                array_of(si(), BaseType::String, Some(2)),
                "an array needs memory",
            ),
            (
                array_of(memory(0, si()), BaseType::Hex(8), Some(0)),
                "1 to 64 elements, not 0",
            ),
            (
                array_of(memory(0, si()), BaseType::Hex(8), Some(65)),
                "not 65",
            ),
            (
                array_of(memory(0, si()), BaseType::SymbolString, Some(2)),
                "use symbol",
            ),
            (
                of_type(value(Fetch::Number(1)), BaseType::SymbolString),
                "symstr is for",
            ),
            (
                of_type(user_memory(1, si()), BaseType::SymbolString),
                "symstr is for",
            ),
            (of_type(si(), BaseType::Hex(24)), "no number of 24 bits"),
            (of_type(si(), bits(0, 0, 8)), "b0@0/8 is no bit field"),
            (of_type(si(), bits(5, 4, 8)), "b5@4/8 is no bit field"),
            (of_type(si(), bits(255, 255, 64)), "is no bit field"),
            (of_type(si(), bits(5, 4, 24)), "is no bit field"),
            (
                of_type(value(Fetch::Comm), BaseType::UserString),
                "are of the type string",
            ),
            (
                array_of(value(Fetch::Comm), BaseType::String, Some(1)),
                "no array",
            ),
            (
                of_type(value(Fetch::Text(String::new())), BaseType::Hex(8)),
                "are of the type string",
            ),
            (
                argument(memory(0, value(Fetch::Comm))),
                "can't be dereferenced",
            ),
            (
                argument(memory(0, value(Fetch::Text(String::new())))),
                "can't be dereferenced",
            ),
            (
                argument(memory(0, value(Fetch::AllArguments))),
                "stands alone",
            ),
        ],
    );
    check(
        AT_ENTRY,
        vec![
            (
                of_type(path("file"), BaseType::String),
                "\"const struct file *\" is no text",
            ),
            (
                of_type(path("count"), BaseType::String),
                "\"size_t\" is no text",
            ),
            (
                of_type(path("file->numbers"), BaseType::String),
                "\"int [3]\" is no text",
            ),
            (
                Argument {
                    name: Some("all".to_owned()),
                    ..argument(value(Fetch::AllArguments))
                },
                "own names and types",
            ),
            (
                of_type(value(Fetch::AllArguments), BaseType::Hex(8)),
                "own names and types",
            ),
        ],
    );
}

#[test]
fn a_task_without_a_known_name_is_refused() {
    let mut guest = Guest::new();
    guest.variables.comm = None;
    let error = guest
        .compile(AT_ENTRY, &argument(value(Fetch::Comm)))
        .unwrap_err();
    assert_eq!(error.cause, Cause::NoComm);
}

/// `kprobe_syntax_errors.tc`, `TOO_MANY_OPS`
#[test]
fn a_value_follows_as_many_pointers_as_the_kernels() {
    let guest = Guest::new();
    let nested = |count: usize, mut inner: Value| {
        let end = count * 3 + inner.span.end;
        for depth in (0..count).rev() {
            inner = Value {
                span: depth * 3..end,
                ..memory(0, inner)
            };
        }
        argument(inner)
    };
    let zero = |count: usize| Value {
        what: Fetch::Address(0),
        span: count * 3..count * 3 + 2,
    };
    assert!(guest.compile(UNKNOWN, &nested(13, zero(13))).is_ok());
    let error = guest.compile(UNKNOWN, &nested(14, zero(14))).unwrap_err();
    assert_eq!((error.cause, error.span.start), (Cause::TooManyLoads, 3));
    assert!(guest.compile(UNKNOWN, &nested(14, register(7))).is_ok());
    let deep = guest
        .compile(UNKNOWN, &nested(5000, register(7)))
        .unwrap_err();
    assert_eq!(deep.cause, Cause::TooManyLoads);
}

#[test]
fn errors_tell_the_part_of_the_text() {
    // 0         1
    // 0123456789012345678
    // name=file->xyz:string
    let file = Value {
        what: Fetch::Variable("file".to_owned()),
        span: 5..9,
    };
    let step = |field: &str| Value {
        what: Fetch::Member {
            of: Box::new(file.clone()),
            arrow: true,
            field: field.to_owned(),
        },
        span: 5..14,
    };
    let whole = |value: Value| Argument {
        name: Some("name".to_owned()),
        value,
        kind: Some(Type {
            base: BaseType::String,
            count: None,
            span: 15..21,
        }),
        span: 0..21,
    };
    let guest = Guest::new();
    let span = |function, value| guest.compile(function, &whole(value)).unwrap_err().span;
    assert_eq!(span(AT_ENTRY, step("xyz")), 9..14);
    assert_eq!(span(AT_ENTRY, step("f_pos")), 15..21);
    assert_eq!(span(INSIDE, step("f_pos")), 5..9);
}

fn any_value() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "file", "count", "buf", "a", "h", "path", "f_inode", "x", "",
    ]);
    let leaf = prop_oneof![
        any::<u8>().prop_map(Fetch::Register),
        Just(Fetch::Flags),
        any::<u64>().prop_map(Fetch::Address),
        (names.clone(), any::<i64>()).prop_map(|(name, offset)| Fetch::Symbol {
            name: name.to_owned(),
            offset
        }),
        any::<u32>().prop_map(Fetch::StackEntry),
        (0_u32..12).prop_map(Fetch::Argument),
        any::<u32>().prop_map(Fetch::Argument),
        Just(Fetch::AllArguments),
        Just(Fetch::ReturnValue),
        Just(Fetch::Comm),
        any::<i64>().prop_map(Fetch::Number),
        names.prop_map(|name| Fetch::Variable(name.to_owned())),
    ]
    .prop_map(value);
    leaf.prop_recursive(8, 20, 1, |inner| {
        let fields = prop::sample::select(vec![
            "f_inode", "f_path", "dentry", "d_name", "name", "bits", "kind", "across", "i_ino",
            "huge", "rest", "wide", "x", "",
        ]);
        prop_oneof![
            (any::<i64>(), any::<bool>(), inner.clone()).prop_map(|(offset, user, address)| {
                value(Fetch::Memory {
                    offset,
                    user,
                    address: Box::new(address),
                })
            }),
            (inner, any::<bool>(), fields).prop_map(|(of, arrow, field)| member(of, arrow, field)),
        ]
    })
}

fn any_type() -> impl Strategy<Value = BaseType> {
    prop_oneof![
        any::<u8>().prop_map(BaseType::Unsigned),
        Just(BaseType::Signed(32)),
        Just(BaseType::Char),
        Just(BaseType::String),
        Just(BaseType::UserString),
        Just(BaseType::Symbol),
        Just(BaseType::SymbolString),
        any::<(u8, u8, u8)>().prop_map(|(width, offset, container)| BaseType::BitField {
            width,
            offset,
            container,
        }),
    ]
}

proptest! {
    #[test]
    fn whatever_is_asked_for_stays_within_what_a_value_may_be(
        value in any_value(),
        kind in prop::option::of((any_type(), prop::option::of(any::<u32>()))),
        place in prop::sample::select(vec![Place::Entry, Place::Inside, Place::Return]),
        name in prop::sample::select(vec![
            "vfs_read", "many", "by_value", "in_words", "in_memory", "unknown",
        ]),
        taken in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        use probe_engine::value::{LOADS_MAX, Taken, VALUE_MAX};
        let guest = Guest::new();
        let asked = match kind {
            Some((base, count)) => array_of(value, base, count),
            None => argument(value),
        };
        let function = Function { name, module: "", place };
        match guest.compile(function, &asked) {
            Ok(all) => for compiled in all {
                for value in &compiled.values {
                    prop_assert!(value.loads.len() <= LOADS_MAX);
                    if let Take::Memory { len, .. } | Take::Text { most: len, .. } = value.take {
                        prop_assert!((1..=VALUE_MAX).contains(&len));
                    }
                }
                let taken = vec![Taken::Bytes(taken.clone()); compiled.values.len()];
                let _ = compiled.format.show(Some(&guest.types), &guest.symbols, &taken);
                let _ = compiled.told();
            },
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
