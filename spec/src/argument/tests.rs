use proptest::prelude::*;

use super::*;

/// Returns the argument without its places.
fn bare(mut argument: Argument) -> Argument {
    fn clear(value: &mut Value) {
        value.span = 0..0;
        match &mut value.what {
            Fetch::Memory { address, .. } => clear(address),
            Fetch::Member { of, .. } => clear(of),
            _ => {}
        }
    }
    clear(&mut argument.value);
    if let Some(kind) = &mut argument.kind {
        kind.span = 0..0;
    }
    argument.span = 0..0;
    argument
}

fn value(what: Fetch) -> Value {
    Value { what, span: 0..0 }
}

fn memory(offset: i64, user: bool, address: Fetch) -> Fetch {
    Fetch::Memory {
        offset,
        user,
        address: Box::new(value(address)),
    }
}

fn member(of: Fetch, arrow: bool, field: &str) -> Fetch {
    Fetch::Member {
        of: Box::new(value(of)),
        arrow,
        field: field.into(),
    }
}

fn variable(name: &str) -> Fetch {
    Fetch::Variable(name.into())
}

fn symbol(name: &str, offset: i64) -> Fetch {
    let name = name.into();
    Fetch::Symbol { name, offset }
}

#[test]
fn every_value_is_read() {
    let table = [
        ("%ax", Fetch::Register(0)),
        ("%sp", Fetch::Register(4)),
        ("%di", Fetch::Register(7)),
        ("%r15", Fetch::Register(15)),
        ("%flags", Fetch::Flags),
        ("%ip", Fetch::InstructionPointer),
        ("@0xff", Fetch::Address(255)),
        ("@010", Fetch::Address(8)),
        ("@jiffies", symbol("jiffies", 0)),
        ("@_sdata+10", symbol("_sdata", 10)),
        ("@_sdata-0x10", symbol("_sdata", -16)),
        ("@a.b$c", symbol("a.b$c", 0)),
        ("$stack", Fetch::Stack),
        ("$stack0", Fetch::StackEntry(0)),
        ("$stack2048", Fetch::StackEntry(2048)),
        ("$arg1", Fetch::Argument(1)),
        ("$arg2048", Fetch::Argument(2048)),
        ("$arg*", Fetch::AllArguments),
        ("$retval", Fetch::ReturnValue),
        ("$comm", Fetch::Comm),
        ("$COMM", Fetch::Comm),
        ("\\123", Fetch::Number(123)),
        ("\\-1", Fetch::Number(-1)),
        ("\\+0x10", Fetch::Number(16)),
        ("\\0xffffffffffffffff", Fetch::Number(-1)),
        ("\\\"text\"", Fetch::Text("text".into())),
        ("\\\"\"", Fetch::Text(String::new())),
        ("\\\"a:b=c\"", Fetch::Text("a:b=c".into())),
        ("+8(%di)", memory(8, false, Fetch::Register(7))),
        ("-0x8(%di)", memory(-8, false, Fetch::Register(7))),
        ("+u8($arg1)", memory(8, true, Fetch::Argument(1))),
        ("-u8($arg1)", memory(-8, true, Fetch::Argument(1))),
        (
            "+0(+10(+20($stack)))",
            memory(0, false, memory(10, false, memory(20, false, Fetch::Stack))),
        ),
        ("count", variable("count")),
        ("_a1", variable("_a1")),
        ("kuid.val", member(variable("kuid"), false, "val")),
        ("$retval.val", member(Fetch::ReturnValue, false, "val")),
        (
            "file->f_inode->i_ino",
            member(member(variable("file"), true, "f_inode"), true, "i_ino"),
        ),
        (
            "$retval->a.b",
            member(member(Fetch::ReturnValue, true, "a"), false, "b"),
        ),
        (
            "+0(file->x)",
            memory(0, false, member(variable("file"), true, "x")),
        ),
    ];
    for (text, expected) in table {
        let argument = parse(text).expect(text);
        assert_eq!(argument.span, 0..text.len());
        assert_eq!((&argument.name, &argument.kind), (&None, &None));
        assert_eq!(bare(argument).value.what, expected, "{text}");
    }
}

#[test]
fn every_type_is_read() {
    let bits = |width, offset, container| BaseType::BitField {
        width,
        offset,
        container,
    };
    let table = [
        ("u8", BaseType::Unsigned(8), None),
        ("u64", BaseType::Unsigned(64), None),
        ("s16", BaseType::Signed(16), None),
        ("x32[4]", BaseType::Hex(32), Some(4)),
        ("x8[64]", BaseType::Hex(8), Some(64)),
        ("char[0x10]", BaseType::Char, Some(16)),
        ("string", BaseType::String, None),
        ("string[3]", BaseType::String, Some(3)),
        ("ustring", BaseType::UserString, None),
        ("symbol", BaseType::Symbol, None),
        ("symstr", BaseType::SymbolString, None),
        ("%pd", BaseType::NameOfDentry, None),
        ("%pD", BaseType::NameOfFile, None),
        ("b2@4/16", bits(2, 4, 16), None),
        ("b64@0/64", bits(64, 0, 64), None),
        ("b1@0x7/8[2]", bits(1, 7, 8), Some(2)),
    ];
    for (kind, base, count) in table {
        let text = format!("name=+0($arg2):{kind}");
        let argument = parse(&text).expect(kind);
        assert_eq!(argument.name.as_deref(), Some("name"));
        let expected = Type {
            base,
            count,
            span: 15..text.len(),
        };
        assert_eq!(argument.kind, Some(expected), "{kind}");
    }
}

#[test]
fn text_that_an_argument_points_to_is_read_from_there() {
    for (text, same) in [
        ("$arg2:ustring", "+0($arg2):ustring"),
        ("a=$arg1:string[2]", "a=+0($arg1):string[2]"),
        ("$retval:string", "+0($retval):string"),
        // Their types in C say what they are.
        ("name:string", "name:string"),
        ("file->f_path:string", "file->f_path:string"),
    ] {
        assert_eq!(parse(text).expect(text).to_string(), same);
        assert_eq!(
            bare(parse(text).unwrap()).value,
            bare(parse(same).unwrap()).value
        );
    }
}

#[test]
fn an_error_has_its_place_and_its_reason() {
    let deep = format!("{}%ax{}", "+0(".repeat(14), ")".repeat(14));
    let too_deep = format!("{}%ax{}", "+0(".repeat(15), ")".repeat(15));
    assert!(parse(&deep).is_ok());
    let long = format!("a={}", "a".repeat(64));
    let table = [
        ("", 0..0, Reason::NoValue),
        ("a=", 2..2, Reason::NoValue),
        ("a=:u8", 2..2, Reason::NoValue),
        ("=1", 0..0, Reason::NoName),
        ("a.b=%ax", 0..3, Reason::BadName),
        ("a=b=%ax", 2..7, Reason::BadParameter),
        ("a b", 1..2, Reason::Space),
        (&long, 2..66, Reason::TooLong),
        (&too_deep, 3..62, Reason::TooDeep),
        ("(%ax)", 0..5, Reason::BadValue),
        ("é", 0..2, Reason::BadValue),
        ("12", 0..2, Reason::BadValue),
        ("$", 0..1, Reason::BadVariable),
        ("$stackp", 0..7, Reason::BadVariable),
        ("$stack+1", 0..8, Reason::BadVariable),
        ("$stack2049", 0..10, Reason::BadStackNumber),
        ("$stack4294967296", 0..16, Reason::BadStackNumber),
        ("$arg", 0..4, Reason::BadVariable),
        ("$arg0", 0..5, Reason::BadArgumentNumber),
        ("$arg2049", 0..8, Reason::BadArgumentNumber),
        ("$args", 0..5, Reason::BadVariable),
        ("$retvals", 0..8, Reason::BadVariable),
        ("$arg1->a", 0..8, Reason::BadVariable),
        ("$arg*:u8", 0..5, Reason::NotAlone),
        ("a=$arg*", 2..7, Reason::NotAlone),
        ("+0($arg*)", 3..8, Reason::NotAlone),
        ("%", 0..1, Reason::BadRegister),
        ("%rax", 0..4, Reason::BadRegister),
        ("%cs", 0..3, Reason::ConstantRegister("cs")),
        ("%ss", 0..3, Reason::ConstantRegister("ss")),
        ("%orig_ax", 0..8, Reason::ConstantRegister("orig_ax")),
        ("@", 0..1, Reason::BadSymbol),
        ("@a*10", 0..5, Reason::BadSymbol),
        ("@a+", 0..3, Reason::BadSymbol),
        ("@a+-1", 0..5, Reason::BadSymbol),
        ("@-1", 0..3, Reason::BadSymbol),
        ("@1x", 0..3, Reason::BadAddress),
        ("@+10", 0..4, Reason::FileOffset),
        ("+0", 0..2, Reason::NoParenthesis),
        ("+(%ax)", 0..1, Reason::BadOffset),
        ("+u(%ax)", 0..2, Reason::BadOffset),
        ("+-1(%ax)", 0..3, Reason::BadOffset),
        ("+9223372036854775808(%ax)", 0..20, Reason::BadOffset),
        ("+0(%ax", 6..6, Reason::OpenParenthesis),
        ("+0(%ax)+10", 7..10, Reason::BehindParenthesis),
        ("+0()", 3..3, Reason::NoValue),
        ("+0($comm)", 3..8, Reason::TextAsAddress),
        ("+0(\\\"a\")", 3..7, Reason::TextAsAddress),
        ("\\", 1..1, Reason::BadImmediate),
        ("\\x", 1..2, Reason::BadImmediate),
        ("\\--1", 1..4, Reason::BadImmediate),
        ("\\\"", 2..2, Reason::OpenText),
        ("\\\"abc:string", 5..5, Reason::OpenText),
        ("file-.foo", 4..5, Reason::LoneHyphen),
        ("file.", 5..5, Reason::BadMember),
        ("fi*le", 0..5, Reason::BadParameter),
        ("file->", 6..6, Reason::BadMember),
        ("file->a..b", 8..10, Reason::BadMember),
        ("file->1", 6..7, Reason::BadMember),
        ("file->a*b", 7..9, Reason::BadMember),
        ("%ax:", 4..4, Reason::BadType),
        ("%ax::u8", 4..7, Reason::BadType),
        ("%ax:y16", 4..7, Reason::BadType),
        ("%ax:bool", 4..8, Reason::BadType),
        ("%ax:b1@1/24", 4..11, Reason::BadType),
        ("%ax:b0@1/8", 4..10, Reason::BadBitField),
        ("%ax:b1@8/8", 4..10, Reason::BadBitField),
        ("%ax:b33@0/32", 4..12, Reason::BadBitField),
        ("%ax:b999@0/32", 4..13, Reason::BadBitField),
        ("file:%pD[1]", 5..8, Reason::BadType),
        ("file:%pe", 5..8, Reason::BadType),
        ("\\\"a\":%pd", 5..8, Reason::NeedsString),
        ("+0(%ax):u8[1", 12..12, Reason::OpenArray),
        ("+0(%ax):u8[1]x", 13..14, Reason::BehindArray),
        ("+0(%ax):u8[]", 11..11, Reason::BadCount),
        ("+0(%ax):u8[0]", 11..12, Reason::BadCount),
        ("+0(%ax):u8[65]", 11..13, Reason::CountTooBig),
        ("+0(%ax):u8[4294967297]", 11..21, Reason::BadCount),
        ("%ax:u8[2]", 4..9, Reason::BadArray),
        ("count:u8[2]", 6..11, Reason::BadArray),
        ("%ax:string", 4..10, Reason::BadString),
        ("$stack:ustring", 7..14, Reason::BadString),
        ("\\1:symstr", 3..9, Reason::BadSymbolString),
        ("+u0(%ax):symstr", 9..15, Reason::BadSymbolString),
        ("+0(%ax):symstr[2]", 8..17, Reason::BadSymbolString),
        ("$comm:u8", 6..8, Reason::NeedsString),
        ("$comm:string[2]", 6..15, Reason::NeedsString),
        ("\\\"a\":ustring", 5..12, Reason::NeedsString),
    ];
    for (text, span, reason) in table {
        assert_eq!(
            parse(text).expect_err(text),
            Wrong { span, reason },
            "{text}"
        );
    }
}

#[test]
fn an_argument_is_had_where_its_value_is_known() {
    use Site::{Entry, Inside, Return, Unknown};
    let table: [(&str, &[Site]); 8] = [
        ("%ax", &[Entry, Return, Inside, Unknown]),
        ("$comm:string", &[Entry, Return, Inside, Unknown]),
        ("$arg1", &[Entry, Return, Unknown]),
        ("+0(+8($arg1)):string", &[Entry, Return, Unknown]),
        ("$arg*", &[Entry, Return, Unknown]),
        ("file->f_inode", &[Entry, Return, Unknown]),
        ("$retval", &[Return]),
        ("+8($retval->next)", &[Return]),
    ];
    for (text, sites) in table {
        let argument = parse(text).unwrap();
        for site in [Entry, Return, Inside, Unknown] {
            let found = argument.check(site);
            assert_eq!(found.is_ok(), sites.contains(&site), "{text} {site:?}");
        }
    }
    let error = parse("a=+8($retval->next)")
        .unwrap()
        .check(Entry)
        .unwrap_err();
    assert_eq!(
        (error.span, error.reason),
        (5..12, Reason::ReturnValueOnProbe)
    );
}

#[test]
fn an_argument_without_a_name_is_numbered_or_called_like_its_parameter() {
    for (text, name) in [
        ("a=%ax", "a"),
        ("%ax", "arg3"),
        ("count:u32", "count"),
        ("file->f_inode", "arg3"),
        ("+0(file)", "arg3"),
        ("file:%pD", "arg3"),
    ] {
        assert_eq!(parse(text).unwrap().name_at(2), name, "{text}");
    }
}

fn any_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "%(ax|r1[0-5]|ip|flags)",
        "@(0x[0-9a-f]{1,8}|[a-z_]{1,5}([+-][1-9]{1,3})?)",
        "[$](stack|stack[0-9]|arg[1-9]|retval|comm)",
        "\\\\(-?[0-9]{1,4}|\"[a-z:=]{0,4}\")",
        "[a-z]{1,3}(->[a-z]{1,3}([.][a-z]{1,3})?){0,2}",
    ];
    leaf.prop_recursive(3, 8, 1, |inner| {
        ("[+-]u?[0-9]{1,3}", inner).prop_map(|(access, inner)| format!("{access}({inner})"))
    })
}

proptest! {
    #[test]
    fn any_text_is_an_argument_or_an_error_within_it(text in any::<String>()) {
        if let Err(wrong) = parse(&text) {
            prop_assert!(wrong.span.start <= wrong.span.end && wrong.span.end <= text.len());
        }
    }

    #[test]
    fn an_argument_reads_back_as_the_same(
        name in "([a-z_][a-z0-9_]{0,5}=)?",
        value in any_value(),
        kind in "(:(([usx](8|16|32|64)|char|u?string|symbol|symstr|b[1-8]@[0-8]/16)(\\[[1-9]\\])?))?",
    ) {
        let text = format!("{name}{value}{kind}");
        if let Ok(argument) = parse(&text) {
            let printed = argument.to_string();
            let again = parse(&printed);
            prop_assert_eq!(again.map(bare), Ok(bare(argument)), "{} {}", text, printed);
        }
    }
}
