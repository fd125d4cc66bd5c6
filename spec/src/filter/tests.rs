use proptest::prelude::*;

use super::*;
use crate::limits::{FILTER_DEPTH_MAX, FILTER_TESTS_MAX};

/// Returns the filter without its places.
fn bare(filter: Filter) -> Filter {
    match filter {
        Filter::All(parts) => Filter::All(parts.into_iter().map(bare).collect()),
        Filter::Any(parts) => Filter::Any(parts.into_iter().map(bare).collect()),
        Filter::Not(of) => Filter::Not(Box::new(bare(*of))),
        Filter::Test(test) => Filter::Test(Test {
            field_span: 0..0,
            constant_span: 0..0,
            ..test
        }),
    }
}

fn test(field: &str, relation: Relation, constant: Constant) -> Filter {
    Filter::Test(Test {
        field: field.into(),
        field_span: 0..0,
        relation,
        constant,
        constant_span: 0..0,
    })
}

fn number(number: i64) -> Constant {
    Constant::Number {
        bits: number.cast_unsigned(),
        negative: number < 0,
    }
}

fn text(text: &str) -> Constant {
    Constant::Text(text.into())
}

#[test]
fn every_comparison_is_read() {
    use Relation::{Common, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Matches, NotEqual};
    let all = Constant::Number {
        bits: u64::MAX,
        negative: false,
    };
    let table = [
        ("a == 1", "a", Equal, number(1)),
        ("a!=0x10", "a", NotEqual, number(16)),
        ("a<010", "a", Less, number(8)),
        ("a <= -1", "a", LessOrEqual, number(-1)),
        ("a>-0", "a", Greater, number(0)),
        ("a >=0xffffffffffffffff", "a", GreaterOrEqual, all),
        ("a&4", "a", Common, number(4)),
        ("a == -9223372036854775808", "a", Equal, number(i64::MIN)),
        ("comm == \"a b\"", "comm", Equal, text("a b")),
        ("comm != 'a\"b'", "comm", NotEqual, text("a\"b")),
        ("comm ~ \"sh*\"", "comm", Matches, text("sh*")),
        ("comm == sh", "comm", Equal, text("sh")),
        ("comm ~ kworker/*", "comm", Matches, text("kworker/*")),
        ("COMM == \"12\"", "comm", Equal, text("12")),
        ("common_pid == 1", "pid", Equal, number(1)),
        ("common_tgid == 1", "tgid", Equal, number(1)),
        ("CPU == 1", "cpu", Equal, number(1)),
        ("a == \"\"", "a", Equal, text("")),
    ];
    for (input, field, relation, constant) in table {
        let expected = test(field, relation, constant);
        assert_eq!(parse(input).map(bare), Ok(expected), "{input}");
    }
}

#[test]
fn places_are_those_of_the_words() {
    let Ok(Filter::Test(test)) = parse(" (common_pid  == 'x')") else {
        panic!("no comparison");
    };
    assert_eq!((test.field_span, test.constant_span), (2..12, 17..20));
}

#[test]
fn signs_bind_as_in_c() {
    let a = |number| test("a", Relation::Equal, self::number(number));
    let not = |filter| Filter::Not(Box::new(filter));
    let table = [
        ("a==1&&a==2&&a==3", Filter::All(vec![a(1), a(2), a(3)])),
        (
            "a==1||a==2&&a==3",
            Filter::Any(vec![a(1), Filter::All(vec![a(2), a(3)])]),
        ),
        (
            "(a==1||a==2)&&a==3",
            Filter::All(vec![Filter::Any(vec![a(1), a(2)]), a(3)]),
        ),
        ("!a==1", not(a(1))),
        ("!!(a==1)", not(not(a(1)))),
        ("!(a==1&&a==2)", not(Filter::All(vec![a(1), a(2)]))),
        ("((a==1))", a(1)),
        ("!a==1&&a==2", Filter::All(vec![not(a(1)), a(2)])),
    ];
    for (input, expected) in table {
        assert_eq!(parse(input).map(bare), Ok(expected.clone()), "{input}");
        assert_eq!(parse(&expected.to_string()).map(bare), Ok(expected));
    }
}

#[test]
fn an_error_has_its_place_and_its_reason() {
    let deep = format!("{}a==1{}", "(".repeat(33), ")".repeat(33));
    let many = vec!["a==1"; FILTER_TESTS_MAX + 1].join("||");
    let long = format!("a=='{}'", "x".repeat(4096));
    let table = [
        ("", 0..0, Reason::NoTest),
        ("  ", 2..2, Reason::NoTest),
        ("()", 1..2, Reason::NoTest),
        ("a==1 &&", 7..7, Reason::NoTest),
        ("&& a==1", 0..2, Reason::NoTest),
        ("!", 1..1, Reason::NoTest),
        ("\"a\" == 1", 0..3, Reason::BadField),
        ("== 1", 0..2, Reason::BadField),
        ("1 == a", 0..1, Reason::BadField),
        ("a-b == 1", 0..3, Reason::BadField),
        ("a.ustring == 'x'", 0..9, Reason::Suffix),
        ("a", 1..1, Reason::NoRelation),
        ("a = 1", 2..3, Reason::NoRelation),
        ("a && b", 2..4, Reason::NoRelation),
        ("a | 1", 2..3, Reason::NoRelation),
        ("a ==", 4..4, Reason::NoConstant),
        ("a == (1)", 5..6, Reason::NoConstant),
        ("a == == 1", 5..7, Reason::NoConstant),
        ("a == 1x", 5..7, Reason::BadNumber),
        ("a == 18446744073709551616", 5..25, Reason::BadNumber),
        ("a == -9223372036854775809", 5..25, Reason::BadNumber),
        ("cpu & CPUS{1,2}", 6..15, Reason::CpuSet),
        ("a == \"x", 5..7, Reason::OpenQuote),
        ("a == 'x\"", 5..8, Reason::OpenQuote),
        ("a < \"x\"", 2..3, Reason::RelationOfText),
        ("a & x", 2..3, Reason::RelationOfText),
        ("a ~ 5", 2..3, Reason::PatternIsNumber),
        ("(a==1", 0..1, Reason::OpenParenthesis),
        ("a==1)", 4..5, Reason::CloseParenthesis),
        ("a==1 b==2", 5..6, Reason::NoJoin),
        ("(a==1 b==2)", 6..7, Reason::NoJoin),
        ("a==1 & b==2", 5..6, Reason::NoJoin),
        (&deep, 32..33, Reason::TooDeep),
        (&many, 384..385, Reason::TooManyTests),
        (&long, 0..4101, Reason::TooLong),
    ];
    for (input, span, reason) in table {
        assert_eq!(
            parse(input).expect_err(input),
            Wrong { span, reason },
            "{input}"
        );
    }
}

#[test]
fn what_is_nested_as_deeply_as_possible_reads_back() {
    for (open, close) in [("(", ")"), ("!", "")] {
        let input = format!(
            "{}a==1{}",
            open.repeat(FILTER_DEPTH_MAX),
            close.repeat(FILTER_DEPTH_MAX)
        );
        let filter = parse(&input).unwrap();
        assert_eq!(parse(&filter.to_string()).map(bare), Ok(bare(filter)));
    }
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let numeric = (1..8_usize, any::<i64>()).prop_map(|(relation, value)| {
        let relation = [
            Relation::Equal,
            Relation::NotEqual,
            Relation::Less,
            Relation::LessOrEqual,
            Relation::Greater,
            Relation::GreaterOrEqual,
            Relation::Common,
        ][relation - 1];
        test("count", relation, number(value))
    });
    let textual = (0..3_usize, "[^\"']{0,6}|[^']{0,6}|[^\"]{0,6}").prop_map(|(relation, value)| {
        let relation = [Relation::Equal, Relation::NotEqual, Relation::Matches][relation];
        test("comm", relation, text(&value))
    });
    prop_oneof![numeric, textual].prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::All),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::Any),
            inner.prop_map(|inner| Filter::Not(Box::new(inner))),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_is_a_filter_or_an_error_within_it(
        text in any::<String>(),
        near in "([ab]|==|&&?|[|]{2}|[!()<'\"~ ]|0x1|-?[0-9]){0,12}",
    ) {
        for text in [text, near] {
            if let Err(wrong) = parse(&text) {
                prop_assert!(wrong.span.start <= wrong.span.end && wrong.span.end <= text.len());
            }
        }
    }

    #[test]
    fn a_filter_reads_back_as_the_same(filter in any_filter()) {
        let printed = filter.to_string();
        prop_assert_eq!(parse(&printed).map(bare), Ok(filter), "{}", printed);
    }
}
