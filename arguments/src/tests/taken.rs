//! Which values a hit takes.

use super::*;

fn check(function: Function<'_>, cases: Vec<(Argument, &str)>) {
    let guest = Guest::new();
    for (argument, expected) in cases {
        let compiled = guest.one(function, &argument);
        assert_eq!(
            shorts(&compiled),
            expected,
            "{}",
            compiled.told().definition
        );
    }
}

#[test]
fn words_are_taken_as_they_are() {
    check(
        UNKNOWN,
        vec![
            (argument(register(7)), "di: hex8"),
            (argument(value(Fetch::Flags)), "flags: hex8"),
            (argument(value(Fetch::InstructionPointer)), "ip: hex8"),
            (argument(value(Fetch::Stack)), "sp: hex8"),
            (argument(value(Fetch::StackEntry(3))), "sp +24: hex8"),
            (
                argument(value(Fetch::Number(-2))),
                "0xfffffffffffffffe: hex8",
            ),
            (
                of_type(register(6), BaseType::Unsigned(16)),
                "si: unsigned2",
            ),
            (of_type(register(6), BaseType::Signed(32)), "si: signed4"),
            (of_type(register(6), BaseType::Hex(8)), "si: hex1"),
            (of_type(register(6), BaseType::Char), "si: char1"),
            (of_type(register(6), BaseType::Symbol), "si: text"),
            (of_type(register(6), BaseType::SymbolString), "si: string"),
        ],
    );
}

#[test]
fn arguments_of_a_module_s_function_are_had_by_the_module_s_types() {
    let guest = Guest::new();
    let mut b = Builder::of_module(&section());
    // The kernel's `int` is its first type.
    let inode = b.structure("ext4_inode", 32, &[("i_flags", 1, 20)]);
    let inode = b.pointer(inode);
    b.function_returning("vfs_read", &[("clean", 1), ("raw", inode)], inode);
    let module = Btf::parse_module(&b.bytes(), &guest.types).unwrap();
    let known = Known {
        types: Some(&module),
        ..guest.known()
    };
    let short = |function: Function<'_>, argument: &Argument| {
        let mut all = compile(argument, 0, &function, &known)?;
        Ok::<_, CompileError>(shorts(&all.remove(0)))
    };
    let in_module = Function {
        module: "ext4",
        ..AT_ENTRY
    };
    let flags = argument(path("raw->i_flags"));
    assert_eq!(short(in_module, &flags).unwrap(), "si +20/4: signed4");
    let returned = Function {
        place: Place::Return,
        ..in_module
    };
    let flags = argument(path("$retval->i_flags"));
    assert_eq!(short(returned, &flags).unwrap(), "ax +20/4: signed4");
    // The kernel has functions with these names: another one, and one that the module doesn't have.
    let error = |function, name| {
        short(function, &argument(path(name)))
            .unwrap_err()
            .to_string()
    };
    assert!(error(in_module, "count").contains("no parameter \"count\""));
    let other = Function {
        name: "many",
        ..in_module
    };
    assert!(error(other, "a").contains("no BTF for ext4:many"));
    // With the module's types, those of the kernel's functions are not known either.
    assert!(error(AT_ENTRY, "count").contains("no BTF for vfs_read"));
}

#[test]
fn arguments_are_in_the_registers_of_the_calling_convention_and_then_on_the_stack() {
    let cases = |registers: [&'static str; 6]| {
        let numbered = (1..).zip(registers);
        let cases =
            numbered.map(|(number, expected)| (argument(value(Fetch::Argument(number))), expected));
        cases.collect::<Vec<_>>()
    };
    let mut at_entry = cases([
        "di: hex8", "si: hex8", "dx: hex8", "cx: hex8", "r8: hex8", "r9: hex8",
    ]);
    at_entry.push((argument(value(Fetch::Argument(7))), "sp +8: hex8"));
    at_entry.push((argument(value(Fetch::Argument(9))), "sp +24: hex8"));
    check(UNKNOWN, at_entry);
    let at_return = Function {
        place: Place::Return,
        ..UNKNOWN
    };
    check(
        at_return,
        cases([
            "entry-di: hex8",
            "entry-si: hex8",
            "entry-dx: hex8",
            "entry-cx: hex8",
            "entry-r8: hex8",
            "entry-r9: hex8",
        ]),
    );
    check(
        at_return,
        vec![(argument(value(Fetch::ReturnValue)), "ax: hex8")],
    );
}

#[test]
fn memory_is_followed_and_the_last_of_it_taken() {
    let jiffies = format!("{:#x}", TEXT + 0x100 + 8);
    check(
        UNKNOWN,
        vec![
            (argument(memory(8, register(7))), "di +8/8: hex8"),
            (
                of_type(memory(-4, memory(16, register(7))), BaseType::Unsigned(32)),
                "di +16 -4/4: unsigned4",
            ),
            (
                of_type(user_memory(1, memory(16, register(7))), BaseType::Hex(8)),
                "di +16 +1u/1: hex1",
            ),
            (
                of_type(memory(1, user_memory(16, register(7))), BaseType::Hex(8)),
                "di +16u +1/1: hex1",
            ),
            (
                argument(memory(0, value(Fetch::StackEntry(2)))),
                "sp +16 +0/8: hex8",
            ),
            (
                of_type(value(Fetch::Address(0x1000)), BaseType::Unsigned(64)),
                "0x1000 +0/8: unsigned8",
            ),
            (
                of_type(symbol("jiffies_64", 8), BaseType::Unsigned(64)),
                &format!("{jiffies} +0/8: unsigned8"),
            ),
            (
                argument(memory(4, symbol("jiffies_64", 8))),
                &format!("{jiffies} +0 +4/8: hex8"),
            ),
            (
                array_of(memory(0, register(6)), BaseType::Hex(64), Some(2)),
                "si +0/16: hex8[2]",
            ),
            (
                array_of(memory(0, register(6)), BaseType::Char, Some(1)),
                "si +0/1: char1[1]",
            ),
            (
                array_of(memory(0, register(6)), BaseType::Symbol, Some(64)),
                "si +0/512: text[64]",
            ),
        ],
    );
}

#[test]
fn bit_fields_are_taken_with_their_container() {
    let bits = BaseType::BitField {
        width: 2,
        offset: 4,
        container: 16,
    };
    check(
        UNKNOWN,
        vec![
            (of_type(register(6), bits), "si: unsigned2"),
            (of_type(memory(8, register(6)), bits), "si +8/2: unsigned2"),
            (
                array_of(memory(8, register(6)), bits, Some(3)),
                "si +8/6: unsigned2[3]",
            ),
        ],
    );
}

#[test]
fn strings_are_where_a_word_leads_to_or_in_memory() {
    check(
        UNKNOWN,
        vec![
            (of_type(register(7), BaseType::String), "di +0\"256: string"),
            (
                of_type(register(7), BaseType::UserString),
                "di +0u\"256: string",
            ),
            (
                of_type(value(Fetch::Argument(2)), BaseType::UserString),
                "si +0u\"256: string",
            ),
            (
                of_type(memory(8, register(7)), BaseType::String),
                "di +8\"256: string",
            ),
            (
                of_type(user_memory(8, register(7)), BaseType::String),
                "di +8u\"256: string",
            ),
            (
                of_type(memory(0, memory(8, register(7))), BaseType::UserString),
                "di +8 +0u\"256: string",
            ),
            (
                of_type(value(Fetch::Number(4096)), BaseType::String),
                "0x1000 +0\"256: string",
            ),
            (
                array_of(memory(8, register(7)), BaseType::String, Some(2)),
                "di +8 +0\"256, di +16 +0\"256: string[2]",
            ),
            (
                array_of(memory(8, register(7)), BaseType::UserString, Some(1)),
                "di +8 +0u\"256: string[1]",
            ),
            (
                array_of(user_memory(8, register(7)), BaseType::String, Some(2)),
                "di +8u +0\"256, di +16u +0\"256: string[2]",
            ),
            (
                array_of(user_memory(8, register(7)), BaseType::UserString, Some(1)),
                "di +8u +0u\"256: string[1]",
            ),
            (
                of_type(register(7), BaseType::NameOfDentry),
                "di +40 +0\"256: string",
            ),
            (
                of_type(memory(8, register(7)), BaseType::NameOfFile),
                "di +8 +72 +40 +0\"256: string",
            ),
            (argument(value(Fetch::Comm)), "task +1872\"16: string"),
            (
                of_type(value(Fetch::Comm), BaseType::String),
                "task +1872\"16: string",
            ),
            (argument(value(Fetch::Text("hello".to_owned()))), ": string"),
        ],
    );
}

#[test]
fn the_name_of_a_parameter_s_dentry_isn_t_called_like_the_parameter() {
    let guest = Guest::new();
    for value in [path("file"), value(Fetch::Argument(1))] {
        let named = guest.one(AT_ENTRY, &of_type(value, BaseType::NameOfFile));
        assert_eq!(named.name, "arg1");
        assert_eq!(shorts(&named), "di +72 +40 +0\"256: string");
    }
}

#[test]
fn names_lead_through_the_types() {
    check(
        AT_ENTRY,
        vec![
            (argument(path("count")), "dx: unsigned8"),
            (argument(path("file")), "di: hex8"),
            (argument(path("buf")), "si: hex8"),
            (
                of_type(path("buf"), BaseType::UserString),
                "si +0u\"256: string",
            ),
            (of_type(path("pos"), BaseType::String), "cx +0\"256: string"),
            (of_type(path("count"), BaseType::Hex(8)), "dx: hex1"),
            (argument(path("file->f_inode")), "di +40/8: hex8"),
            (
                argument(path("file->f_inode->i_ino")),
                "di +40 +64/8: unsigned8",
            ),
            (
                argument(path("file->f_inode->i_kind")),
                "di +40 +72/4: text",
            ),
            (argument(path("file->f_mode")), "di +12/4: signed4"),
            (argument(path("file->f_pos")), "di +112/8: signed8"),
            (argument(path("file->ok")), "di +160/1: unsigned1"),
            (
                argument(path("file->f_path.dentry->d_name.name")),
                "di +72 +40/8: hex8",
            ),
            (
                of_type(path("file->f_path.dentry->d_name.name"), BaseType::String),
                "di +72 +40 +0\"256: string",
            ),
            (
                argument(path("file->f_path.dentry->d_name")),
                "di +72 +32/16: text",
            ),
            (argument(path("file->f_path")), "di +64/16: text"),
            (argument(path("file->name")), "di +120\"8: string"),
            (
                of_type(path("file->name"), BaseType::String),
                "di +120\"8: string",
            ),
            (
                of_type(path("file->f_path.dentry->d_iname"), BaseType::String),
                "di +72 +56\"40: string",
            ),
            (
                argument(path("file->f_path.dentry->d_iname")),
                "di +72 +56/40: text",
            ),
            (argument(path("file->numbers")), "di +128/12: text"),
            (
                array_of(path("file->numbers"), BaseType::Signed(32), Some(3)),
                "di +128/12: signed4[3]",
            ),
            (argument(path("file->huge")), "di +192/1536: text"),
            (argument(path("file->wide")), "di +176/16: text"),
            (argument(path("file->bits.low")), "di +144/1: unsigned1"),
            (argument(path("file->bits.kind")), "di +144/1: text"),
            (argument(path("file->bits.across")), "di +145/4: signed4"),
            (argument(memory(8, path("file"))), "di +8/8: hex8"),
            (argument(path("$arg1->f_pos")), "di +112/8: signed8"),
            (argument(path("$arg3")), "dx: unsigned8"),
        ],
    );
    check(
        MANY,
        vec![
            (argument(path("a")), "di: signed4"),
            (argument(path("b")), "si: unsigned1"),
            (argument(path("c")), "dx: text"),
            (argument(path("d")), "cx: unsigned2"),
            (argument(path("f")), "r9: unsigned1"),
            (argument(path("g")), "sp +8: signed8"),
            (argument(path("h")), "sp +16: signed4"),
        ],
    );
}

#[test]
fn a_return_has_the_entrys_arguments_and_the_types_value() {
    check(
        AT_RETURN,
        vec![
            (argument(path("count")), "entry-dx: unsigned8"),
            (argument(path("file->f_pos")), "entry-di +112/8: signed8"),
            (argument(path("$retval")), "ax: signed8"),
            (of_type(path("$retval"), BaseType::Hex(32)), "ax: hex4"),
        ],
    );
    let many = Function {
        place: Place::Return,
        ..MANY
    };
    check(
        many,
        vec![
            (argument(path("$retval")), "ax: hex8"),
            (
                argument(path("$retval->f_inode->i_ino")),
                "ax +40 +64/8: unsigned8",
            ),
        ],
    );
    let by_value = Function {
        name: "by_value",
        ..many
    };
    check(
        by_value,
        vec![
            (of_type(path("$retval"), BaseType::Hex(64)), "ax: hex8"),
            (argument(path("$retval")), "ax, dx: text"),
            (argument(path("$retval.mnt")), "ax: hex8"),
            (argument(path("$retval.dentry->d_iname")), "dx +56/40: text"),
            (argument(path("path.dentry")), "entry-dx: hex8"),
            (argument(path("after")), "entry-cx: signed4"),
        ],
    );
    let in_memory = Function {
        name: "in_memory",
        ..many
    };
    check(
        in_memory,
        vec![
            (argument(path("$retval.rest")), "ax +16/8: unsigned8"),
            // The first register has the address of what is returned.
            (argument(path("first")), "entry-si: signed4"),
            (argument(path("after")), "entry-dx: signed4"),
        ],
    );
}

#[test]
fn structures_are_in_as_many_registers_as_they_have_words_or_on_the_stack() {
    let in_words = Function {
        name: "in_words",
        ..AT_ENTRY
    };
    check(
        in_words,
        vec![
            (argument(path("first")), "di: signed4"),
            (argument(path("pte")), "si: text"),
            (argument(path("pte.pte")), "si: unsigned8"),
            (of_type(path("pte"), BaseType::Hex(64)), "si: hex8"),
            (argument(path("pointer")), "dx, cx: text"),
            (argument(path("pointer.user")), "dx: hex8"),
            (argument(path("pointer.is_kernel")), "cx: unsigned1"),
            (
                of_type(path("pointer.user"), BaseType::UserString),
                "dx +0u\"256: string",
            ),
            (argument(path("parts.a")), "r8: unsigned4"),
            (argument(path("parts.half")), "r8: text"),
            (argument(path("parts.half.c")), "r8: unsigned8"),
            (of_type(path("parts.half.c"), BaseType::Hex(8)), "r8: hex8"),
            (argument(path("after")), "r9: signed4"),
            // No register is left for both of its words.
            (argument(path("pair")), "sp +8/16: text"),
            (argument(path("pair.high")), "sp +16/8: unsigned8"),
            (argument(path("more")), "sp +24: signed4"),
        ],
    );
}

#[test]
fn arguments_are_named_by_themselves_by_their_parameters_or_by_their_number() {
    let guest = Guest::new();
    for (value, expected, definition) in [
        (path("count"), "count", "count"),
        (path("$arg3"), "count", "$arg3"),
        (path("file->f_pos"), "arg4", "file->f_pos"),
        (register(7), "arg4", "%di"),
        (
            memory(-8, user_memory(4, register(15))),
            "arg4",
            "-8(+u4(%r15))",
        ),
        (symbol("jiffies_64", -1), "arg4", "@jiffies_64-1"),
    ] {
        let known = guest.known();
        let compiled = compile(&argument(value.clone()), 3, &AT_ENTRY, &known).unwrap();
        assert_eq!(compiled[0].name, expected);
        assert_eq!(compiled[0].told().definition, definition);
        let named = Argument {
            name: Some("mine".to_owned()),
            ..array_of(value, BaseType::Hex(64), None)
        };
        let compiled = compile(&named, 3, &AT_ENTRY, &known).unwrap();
        assert_eq!(compiled[0].told().name, "mine");
        assert_eq!(compiled[0].told().definition, format!("{definition}:x64"));
    }
}

#[test]
fn a_named_argument_by_number_has_no_type() {
    let named = Argument {
        name: Some("mine".to_owned()),
        ..argument(path("$arg3"))
    };
    check(AT_ENTRY, vec![(named, "dx: hex8")]);
}

#[test]
fn all_arguments_are_the_parameters() {
    let guest = Guest::new();
    let all = argument(value(Fetch::AllArguments));
    let compiled = guest.compile(MANY, &all).unwrap();
    let found: Vec<_> = compiled
        .iter()
        .map(|one| format!("{} {} {}", one.name, one.told().definition, shorts(one)))
        .collect();
    assert_eq!(
        found,
        [
            "a a di: signed4",
            "b b si: unsigned1",
            "c c dx: text",
            "d d cx: unsigned2",
            "arg5 $arg5 r8: hex8",
            "f f r9: unsigned1",
            "g g sp +8: signed8",
            "h h sp +16: signed4",
        ]
    );
    let nothing = Function {
        name: "nothing",
        ..MANY
    };
    assert_eq!(guest.compile(nothing, &all).unwrap().len(), 0);
    let compiled = guest.compile(AT_RETURN, &all).unwrap();
    assert_eq!(shorts(&compiled[1]), "entry-si: hex8");
}
