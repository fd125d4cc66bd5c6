mod arguments;
mod properties;
mod selftests;

use vmprobe_proto::v1::probe_spec::{Kind, Place};
use vmprobe_proto::v1::{
    Capture, Condition, InstructionProbe, ProbeOptions, ProbeSpec, Relation, ReturnProbe,
    SymbolPlace, Watchpoint,
};

use crate::{CONDITIONS_MAX, definition, definitions, from_cmdline, names, parse, render};

fn symbol(name: &str, symbol: &str, offset: u64) -> ProbeSpec {
    ProbeSpec {
        name: name.into(),
        place: Some(Place::Symbol(SymbolPlace {
            symbol: symbol.into(),
            offset,
            module: String::new(),
        })),
        kind: Some(Kind::Instruction(InstructionProbe::default())),
        enabled: None,
        options: None,
        ..ProbeSpec::default()
    }
}

fn address(name: &str, address: u64) -> ProbeSpec {
    ProbeSpec {
        place: Some(Place::Address(address)),
        ..symbol(name, "", 0)
    }
}

fn module(module: &str, of: ProbeSpec) -> ProbeSpec {
    let Some(Place::Symbol(place)) = of.place else {
        panic!("no symbol");
    };
    let module = module.into();
    ProbeSpec {
        place: Some(Place::Symbol(SymbolPlace { module, ..place })),
        ..of
    }
}

fn returning(maxactive: u32, of: ProbeSpec) -> ProbeSpec {
    let kind = Some(Kind::Return(ReturnProbe {
        maxactive,
        rets: false,
    }));
    ProbeSpec { kind, ..of }
}

fn at_rets(maxactive: u32, of: ProbeSpec) -> ProbeSpec {
    let rets = true;
    let kind = Some(Kind::Return(ReturnProbe { maxactive, rets }));
    ProbeSpec { kind, ..of }
}

fn watching(length: u32, reads: bool, of: ProbeSpec) -> ProbeSpec {
    let kind = Some(Kind::Watchpoint(Watchpoint { length, reads }));
    ProbeSpec { kind, ..of }
}

fn events(post: bool, fault: bool, of: ProbeSpec) -> ProbeSpec {
    let kind = Some(Kind::Instruction(InstructionProbe { post, fault }));
    ProbeSpec { kind, ..of }
}

fn disabled(of: ProbeSpec) -> ProbeSpec {
    ProbeSpec {
        enabled: Some(false),
        ..of
    }
}

#[test]
fn every_documented_form_of_an_instruction_probe_is_read() {
    let table = [
        ("vfs_read", symbol("", "vfs_read", 0)),
        ("vfs_read+0x15", symbol("", "vfs_read", 0x15)),
        ("vfs_read+21", symbol("", "vfs_read", 21)),
        ("0xffffffff812f0c15", address("", 0xffff_ffff_812f_0c15)),
        ("open=do_sys_openat2", symbol("open", "do_sys_openat2", 0)),
        ("a.b-c=0x10", address("a.b-c", 0x10)),
        ("p vfs_read", symbol("", "vfs_read", 0)),
        ("p:open vfs_open+8", symbol("open", "vfs_open", 8)),
        ("p:grp/open 0xff", address("grp/open", 0xff)),
        ("  p:x   y  ", symbol("x", "y", 0)),
        ("p", symbol("", "p", 0)),
        ("r", symbol("", "r", 0)),
        ("w", symbol("", "w", 0)),
        ("panic", symbol("", "panic", 0)),
        ("foo.constprop.0+0x4", symbol("", "foo.constprop.0", 4)),
        ("ext4:f+4", module("ext4", symbol("", "f", 4))),
        ("x=8021q:f", module("8021q", symbol("x", "f", 0))),
        ("p:x 9p:f", module("9p", symbol("x", "f", 0))),
        ("f post", events(true, false, symbol("", "f", 0))),
        ("r7 f rets", at_rets(7, symbol("", "f", 0))),
        ("f%return rets", at_rets(0, symbol("", "f", 0))),
        (
            "x=f fault post disabled",
            disabled(events(true, true, symbol("x", "f", 0))),
        ),
        ("p 0x10 disabled", disabled(address("", 16))),
        ("p f post  post", events(true, false, symbol("", "f", 0))),
    ];
    for (text, expected) in table {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
}

#[test]
fn every_documented_form_of_a_return_probe_is_read() {
    let plain = || symbol("", "vfs_read", 0);
    let table = [
        ("vfs_read%return", returning(0, plain())),
        ("p vfs_read%return", returning(0, plain())),
        ("r vfs_read%return", returning(0, plain())),
        ("r vfs_read", returning(0, plain())),
        ("r vfs_read+0", returning(0, plain())),
        ("r64 vfs_read", returning(64, plain())),
        ("r4096 vfs_read", returning(4096, plain())),
        ("r:x vfs_read", returning(0, symbol("x", "vfs_read", 0))),
        ("r16:g/x f", returning(16, symbol("g/x", "f", 0))),
        ("x=f%return", returning(0, symbol("x", "f", 0))),
        (
            "ext4:f%return",
            returning(0, module("ext4", symbol("", "f", 0))),
        ),
        ("r 0x1000", returning(0, address("", 0x1000))),
        ("r f disabled", disabled(returning(0, symbol("", "f", 0)))),
    ];
    for (text, expected) in table {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
}

#[test]
fn every_documented_form_of_a_watchpoint_is_read() {
    let jiffies = || symbol("", "jiffies", 0);
    let table = [
        ("w jiffies", watching(0, false, jiffies())),
        ("w jiffies/8", watching(8, false, jiffies())),
        ("w jiffies:w", watching(0, false, jiffies())),
        ("w jiffies:rw", watching(0, true, jiffies())),
        ("w jiffies/4:rw", watching(4, true, jiffies())),
        (
            "w:x jiffies+4/4",
            watching(4, false, symbol("x", "jiffies", 4)),
        ),
        ("w 0x1000/1:rw", watching(1, true, address("", 0x1000))),
        (
            "w m:rw/8:w",
            watching(8, false, module("m", symbol("", "rw", 0))),
        ),
        (
            "w m:rw:w",
            watching(0, false, module("m", symbol("", "rw", 0))),
        ),
        (
            "w m:x:rw",
            watching(0, true, module("m", symbol("", "x", 0))),
        ),
        (
            "w m:data",
            watching(0, false, module("m", symbol("", "data", 0))),
        ),
        (
            "w jiffies disabled",
            disabled(watching(0, false, jiffies())),
        ),
    ];
    for (text, expected) in table {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
}

fn condition(operand: &str, relation: Relation, constant: u64, signed: bool) -> Condition {
    Condition {
        operand: names::operand(operand),
        relation: relation.into(),
        constant,
        signed,
    }
}

fn registers(wanted: &[&str]) -> ProbeOptions {
    ProbeOptions {
        capture: Capture::Registers.into(),
        registers: wanted
            .iter()
            .map(|name| names::register(name).unwrap().into())
            .collect(),
        ..ProbeOptions::default()
    }
}

fn on(conditions: Vec<Condition>) -> ProbeOptions {
    ProbeOptions {
        conditions,
        ..ProbeOptions::default()
    }
}

#[test]
fn every_documented_option_is_read() {
    use Relation::{Common, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    let minus = |number: u64| number.wrapping_neg();
    let count = ProbeOptions {
        capture: Capture::Count.into(),
        ..ProbeOptions::default()
    };
    let table = [
        ("count", count.clone()),
        (
            "lossless nojump",
            ProbeOptions {
                lossless: true,
                optimize: Some(false),
                ..ProbeOptions::default()
            },
        ),
        ("regs=rdi+rsi", registers(&["rsi", "rdi"])),
        ("regs=rflags+rax+rax", registers(&["rax", "rflags"])),
        ("regs=none", registers(&[])),
        (
            "if=edi==0xffffff9c&&pid==100",
            on(vec![
                condition("edi", Equal, 0xffff_ff9c, false),
                condition("pid", Equal, 100, false),
            ]),
        ),
        (
            "if=edi==-100",
            on(vec![condition("edi", Equal, minus(100), true)]),
        ),
        (
            "if=r8b!=1 if=rdi&0x4&&rsi<2",
            on(vec![
                condition("r8b", NotEqual, 1, false),
                condition("rdi", Common, 4, false),
                condition("rsi", Less, 2, false),
            ]),
        ),
        (
            "if=cpu<=3&&tgid>=7&&eax>s0",
            on(vec![
                condition("cpu", LessOrEqual, 3, false),
                condition("tgid", GreaterOrEqual, 7, false),
                condition("eax", Greater, 0, true),
            ]),
        ),
        (
            "if=dil==-128",
            on(vec![condition("dil", Equal, minus(128), true)]),
        ),
        (
            "count if=rax<-9223372036854775808",
            ProbeOptions {
                conditions: vec![condition("rax", Less, 1 << 63, true)],
                ..count
            },
        ),
    ];
    for (options, expected) in table {
        for (text, of) in [
            ("p f", symbol("", "f", 0)),
            ("r f", returning(0, symbol("", "f", 0))),
            ("w f/8:rw", watching(8, true, symbol("", "f", 0))),
        ] {
            let expected = ProbeSpec {
                options: Some(expected.clone()),
                ..of
            };
            let text = format!("{text} {options}");
            assert_eq!(parse(&text), Ok(expected), "{text}");
        }
    }
}

#[test]
fn conditions_are_as_many_as_the_server_takes() {
    let text = |count: usize| format!("f if={}", vec!["rdi==1"; count].join("&&"));
    assert!(parse(&text(CONDITIONS_MAX)).is_ok());
    let error = parse(&text(CONDITIONS_MAX + 1)).unwrap_err();
    assert!(error.reason.contains("16 conditions"), "{error}");
}

#[test]
fn an_error_points_at_its_column() {
    let table = [
        ("", 1, "belongs here"),
        ("vfs_read+", 10, "behind `+`"),
        ("vfs_read+5c", 11, "begins with 0x"),
        ("vfs_read+0x5g", 13, "not a digit"),
        ("vfs_read+0x", 12, "behind `+`"),
        ("vfs_read-4", 1, "positive"),
        ("dm-mod:f", 1, "`_`"),
        ("f count=1", 9, "a value begins"),
        ("f count/s", 3, "parameter's name"),
        ("f regs=", 8, "rax to r15"),
        ("f regs=rip", 8, "rax to r15"),
        ("f regs=rdi+edi", 12, "whole registers"),
        ("f regs=rdi+", 12, "rax to r15"),
        ("f regs=rdi,rsi", 11, "`+`"),
        ("f regs=rdi regs=rsi", 12, "twice"),
        ("f count regs=rdi", 9, "no registers"),
        ("f regs=rdi count", 12, "no registers"),
        ("f if=", 6, "belongs here"),
        ("f if=ah==1", 6, "another part"),
        ("f if=comm==1", 6, "cpu, pid or tgid"),
        ("f if=rdi", 9, "== !="),
        ("f if=rdi=1", 9, "== !="),
        ("f if=rdi&&rsi==1", 9, "== !="),
        ("f if=rdi==", 11, "a number"),
        ("f if=rdi==1&rsi==1", 12, "`&&`"),
        ("f if=rdi==1&&", 14, "belongs here"),
        ("f if=dil==0x100", 11, "8 bits"),
        ("f if=dil==-129", 11, "8 bits"),
        ("f if=rdi==-9223372036854775809", 11, "64 bits"),
        ("f if=edi==1g", 12, "not a digit"),
        ("vfs_read%exit", 9, "%return"),
        ("vfs_read%returns", 9, "%return"),
        ("vfs_read+4%return", 1, "no offset"),
        ("r vfs_read+0x4", 3, "no offset"),
        ("r vfs_read post", 12, "instruction"),
        ("vfs_read rets", 10, "only a return probe"),
        ("w jiffies fault", 11, "instruction"),
        ("0x10%return", 5, "r 0xADDRESS"),
        ("r4097 f", 2, "4096"),
        ("r99999999999 f", 2, "4096"),
        ("w f%return", 4, "return probe"),
        ("w jiffies/", 11, "1, 2, 4 or 8"),
        ("w jiffies/3", 11, "1, 2, 4 or 8"),
        ("w jiffies/16", 11, "1, 2, 4 or 8"),
        ("w jiffies:", 11, "w (writes) or rw"),
        ("w jiffies:r", 11, "reads alone"),
        ("w jiffies:x", 11, "use `p`"),
        ("w jiffies/8:q", 13, "w (writes) or rw"),
        ("w jiffies:rw/8", 13, "before the access"),
        ("vfs_read/8", 9, "watchpoint"),
        ("p:", 3, "name"),
        ("r: vfs_read", 3, "name"),
        ("p:x", 4, "missing"),
        ("w:x", 4, "missing"),
        ("p:a*b vfs_read", 4, "letters"),
        ("-:x", 1, "probe rm"),
        ("=vfs_read", 1, "before `=`"),
        ("a*b=vfs_read", 2, "letters"),
        ("x=", 3, "belongs here"),
        ("ext4:", 6, "module ext4"),
        (":f", 1, "belongs here"),
        ("a:b:c", 4, "doesn't belong"),
        ("1234", 1, "0x"),
        ("0x10:f", 5, "doesn't belong"),
        ("0x10+4", 5, "no offset"),
        ("0x11111111111111111", 1, "64 bits"),
        ("vfs_read+99999999999999999999", 10, "64 bits"),
        ("été", 1, "belongs here"),
        ("x=é", 3, "belongs here"),
        ("fooé", 4, "doesn't belong"),
        ("p été", 3, "belongs here"),
        ("p:a/b/c f", 5, "behind `/`"),
        ("a.b/c=f", 1, "group"),
        ("tcp_*+4", 1, "pattern"),
        ("w tcp_*", 7, "doesn't belong"),
    ];
    for (text, column, reason) in table {
        let error = parse(text).expect_err(text);
        assert_eq!(error.column, column, "{text}: {error}");
        assert!(error.reason.contains(reason), "{text}: {error}");
    }
}

#[test]
fn the_message_quotes_the_text() {
    assert_eq!(
        parse("vfs_read+").unwrap_err().to_string(),
        "bad probe `vfs_read+`, column 10: an offset such as 0x15 or 21 belongs behind `+`"
    );
}
