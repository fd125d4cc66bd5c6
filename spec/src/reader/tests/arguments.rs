use super::*;
use crate::{ARGUMENTS_MAX, STACK_DEFAULT, STACK_MAX, is_pattern};

/// Returns what a definition's words behind the place ask for.
fn asked(text: &str) -> (Vec<String>, u32, String) {
    let spec = parse(text).expect(text);
    (spec.arguments, spec.stack, spec.filter)
}

#[test]
fn words_that_are_no_options_are_arguments() {
    let table: [(&str, &[&str], u32, &str); 14] = [
        (
            "f file count=count pos",
            &["file", "count=count", "pos"],
            0,
            "",
        ),
        (
            "p:x f a=%di:u8 post +0(%si):string",
            &["a=%di:u8", "+0(%si):string"],
            0,
            "",
        ),
        ("r f $arg* $retval", &["$arg*", "$retval"], 0, ""),
        ("f%return $retval:s32", &["$retval:s32"], 0, ""),
        (
            "w jiffies/8:w %ip:symstr disabled $comm",
            &["%ip:symstr", "$comm"],
            0,
            "",
        ),
        ("p 0xffffffff81000000 $arg1", &["$arg1"], 0, ""),
        ("p f+4 dfd", &["dfd"], 0, ""),
        ("p f+5 %di", &["%di"], 0, ""),
        (
            "p f regs=%di if=$arg1 stack=%sp",
            &["regs=%di", "if=$arg1", "stack=%sp"],
            0,
            "",
        ),
        (
            "p f post=post counts disabled:u8",
            &["post=post", "counts", "disabled:u8"],
            0,
            "",
        ),
        ("f stack", &[], STACK_DEFAULT, ""),
        ("f stack=64 a", &["a"], STACK_MAX, ""),
        (
            "p:open f dfd stack if  dfd == -100 && comm == \"a  b\"  ",
            &["dfd"],
            STACK_DEFAULT,
            "dfd == -100 && comm == \"a  b\"",
        ),
        ("x=f if stack==1", &[], 0, "stack==1"),
    ];
    for (text, arguments, stack, filter) in table {
        let expected = (
            arguments.iter().map(|text| (*text).to_owned()).collect(),
            stack,
            filter.to_owned(),
        );
        assert_eq!(asked(text), expected, "{text}");
        let spec = parse(text).unwrap();
        assert_eq!(parse(&definition(&spec)), Ok(spec), "{text}");
    }
}

#[test]
fn options_stay_beside_arguments_and_filters() {
    let spec = parse("p:x f a regs=rdi if=rdi==1 nojump b stack=2 if a == 1").unwrap();
    let text = "p:x f a b stack=2 regs=rdi if=rdi==0x1 nojump if a == 1";
    assert_eq!(definition(&spec), text);
}

#[test]
fn a_parameter_called_like_an_option_is_printed_with_a_name() {
    let spec = ProbeSpec {
        arguments: vec!["count".into(), "buf".into()],
        ..parse("f").unwrap()
    };
    assert_eq!(definition(&spec), "p f count=count buf");
}

#[test]
fn an_error_is_at_its_argument() {
    let many = format!("f {}", vec!["%di"; ARGUMENTS_MAX + 1].join(" "));
    let table = [
        ("f a a", 5, 1, Some("USED_ARG_NAME")),
        ("f arg2=%di %si", 12, 3, Some("USED_ARG_NAME")),
        ("f common_pid=%di", 3, 10, Some("USED_ARG_NAME")),
        ("f %di __probe_ip=%di", 7, 10, Some("USED_ARG_NAME")),
        ("f $arg* a=%di a=%si", 15, 1, Some("USED_ARG_NAME")),
        ("f  b=+8($retval)", 9, 7, Some("RETVAL_ON_PROBE")),
        ("w jiffies $arg1", 11, 5, Some("NOFENTRY_ARGS")),
        ("p f+5 file->f_inode", 7, 4, Some("NOSUP_BTFARG")),
        ("p f+1 a=+0(file)", 12, 4, Some("NOSUP_BTFARG")),
        ("f if", 5, 0, Some("NO_EP_FILTER")),
        ("f if a", 7, 0, Some("INVALID_OP")),
        ("f é=%di", 3, 1, Some("BAD_ARG_NAME")),
        ("f %di:é", 7, 1, Some("BAD_TYPE")),
        ("f if 'é' == é", 6, 3, Some("FIELD_NOT_FOUND")),
        ("f stack=0", 9, 1, None),
        ("f stack=65", 9, 2, None),
        ("f stack=4294967297", 9, 10, None),
        ("f stack=4,", 10, 1, None),
        (&many, 3 + 4 * ARGUMENTS_MAX, 3, Some("TOO_MANY_ARGS")),
    ];
    for (text, column, length, kernel) in table {
        let error = parse(text).expect_err(text);
        assert_eq!(
            (error.column, error.length, error.kernel),
            (column, length, kernel),
            "{text}"
        );
    }
}

#[test]
fn names_behind_all_arguments_are_not_known_yet() {
    assert!(parse("f $arg* arg2=%di %si").is_ok());
}

#[test]
fn a_pattern_stands_where_a_function_does() {
    for (text, pattern) in [
        ("p tcp_*", "tcp_*"),
        ("r:x *_read", "*_read"),
        ("x=tcp_?end* sk", "tcp_?end*"),
        ("ext4:ext4_*%return", "ext4_*"),
    ] {
        let Some(Place::Symbol(place)) = parse(text).expect(text).place else {
            panic!("{text}: no symbol");
        };
        assert_eq!(place.symbol, pattern);
        assert!(is_pattern(&place.symbol));
    }
    assert!(!is_pattern("foo.constprop.0"));
}
