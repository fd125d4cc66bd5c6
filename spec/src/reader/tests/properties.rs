use proptest::prelude::*;

use super::*;

fn any_place() -> impl Strategy<Value = Place> {
    let symbol = (
        "[a-zA-Z_.][a-zA-Z0-9_.$@]{0,8}",
        prop_oneof![Just(0), Just(4), any::<u64>()],
        "([a-z0-9_]{1,6})?",
    )
        .prop_filter("an address, not a module", |(_, _, module)| {
            !module.starts_with("0x")
        })
        .prop_map(|(symbol, offset, module)| {
            Place::Symbol(SymbolPlace {
                symbol,
                offset,
                module,
            })
        });
    prop_oneof![symbol, any::<u64>().prop_map(Place::Address)]
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        any::<(bool, bool)>()
            .prop_map(|(post, fault)| Kind::Instruction(InstructionProbe { post, fault })),
        (0u32..=4096, any::<bool>())
            .prop_map(|(maxactive, rets)| Kind::Return(ReturnProbe { maxactive, rets })),
        (prop::sample::select(vec![0u32, 1, 2, 4, 8]), any::<bool>())
            .prop_map(|(length, reads)| Kind::Watchpoint(Watchpoint { length, reads })),
    ]
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let operands = [
        "rdi", "edi", "di", "dil", "r15w", "rsp", "cpu", "pid", "tgid",
    ];
    (
        prop::sample::select(operands.to_vec()),
        1..=7i32,
        any::<u64>(),
        any::<bool>(),
    )
        .prop_map(|(operand, relation, number, signed)| {
            let unused = 64 - 8 * names::operand_size(&names::operand(operand).unwrap());
            let constant = match signed {
                true => (number.cast_signed() >> unused).cast_unsigned(),
                false => number >> unused,
            };
            Condition {
                operand: names::operand(operand),
                relation,
                constant,
                signed,
            }
        })
}

fn any_argument() -> impl Strategy<Value = String> {
    let texts = [
        "%di",
        "+0(+u8(%si)):x32[4]",
        "@jiffies-4:u64",
        "$stack3:b2@4/16",
        "\\-5",
        "\\\"text\"",
        "$comm",
        "%ip:symstr",
        "-8(%r10):string",
    ];
    prop::sample::select(texts.to_vec()).prop_map(str::to_owned)
}

fn any_options() -> impl Strategy<Value = ProbeOptions> {
    let registers = prop::collection::btree_set(0u8..=16, 0..4);
    let conditions = prop::collection::vec(any_condition(), 0..4);
    (0..3, registers, conditions, any::<bool>(), any::<bool>()).prop_map(
        |(capture, registers, conditions, lossless, fixed)| {
            let mut options = ProbeOptions {
                conditions,
                lossless,
                optimize: fixed.then_some(false),
                ..ProbeOptions::default()
            };
            match capture {
                0 => {}
                1 => options.set_capture(Capture::Count),
                _ => {
                    let registers = registers.into_iter().filter_map(names::numbered);
                    options.registers = registers.map(i32::from).collect();
                    options.set_capture(Capture::Registers);
                }
            }
            options
        },
    )
}

/// Texts that come near the grammar, so that most of its branches are entered.
fn near_texts() -> impl Strategy<Value = String> {
    let parts = [
        "p",
        "r",
        "w",
        ":",
        "=",
        "+",
        "%",
        "return",
        "/",
        "8",
        "0x",
        "f",
        "rw",
        "x",
        " ",
        ",",
        ";",
        "\"",
        "-",
        "post",
        "fault",
        "disabled",
        "count",
        "regs=",
        "rdi",
        "dil",
        "pid",
        "if=",
        "==",
        "<s",
        "&",
        "&&",
        "vmprobe.probe=",
        "é",
        "99999999999999999999",
        "$arg",
        "1",
        "*",
        "(",
        ")",
        "@",
        "\\",
        "string",
        "[",
        "]",
        "->",
        "stack",
        "comm",
        "if ",
        "#",
        "\n",
        "-:",
    ];
    let part = prop::sample::select(parts.to_vec());
    prop::collection::vec(part, 0..16).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in any::<String>(), near in near_texts()) {
        for text in [text, near] {
            if let Err(error) = parse(&text) {
                prop_assert!(error.column <= text.chars().count() + 1);
            }
            for found in definitions(&text) {
                if let Err(error) = found {
                    prop_assert!(!render(&error, None).is_empty());
                }
            }
            let _ = from_cmdline(&text);
            let _ = from_cmdline(&format!("vmprobe.probe={text}"));
        }
    }

    #[test]
    fn a_definition_reads_back_as_the_same_probe(
        name in "([a-zA-Z_][a-zA-Z0-9_-]{0,5}/([a-zA-Z_][a-zA-Z0-9_]{0,5})?)?|[a-zA-Z0-9_.-]{0,6}",
        place in any_place(),
        kind in any_kind(),
        disabled: bool,
        options in any_options(),
        arguments in prop::collection::vec(any_argument(), 0..4),
        stack in 0..=64_u32,
        filter in "(comm == 'sh'( && a < -[1-9]{1,4})?)?",
    ) {
        // Each name is there once.
        let arguments = (0..).zip(arguments).map(|(index, text)| format!("a{index}={text}")).collect();
        let options = Some(options).filter(|options| *options != ProbeOptions::default());
        let enabled = disabled.then_some(false);
        let mut spec = ProbeSpec { name, place: Some(place), kind: Some(kind), enabled, options, arguments, stack, filter, ..ProbeSpec::default() };
        if let (Some(Kind::Return(_)), Some(Place::Symbol(place))) = (&spec.kind, &mut spec.place) {
            place.offset = 0;
        }
        let text = definition(&spec);
        prop_assert_eq!(parse(&text), Ok(spec.clone()), "{}", &text);
        let on_cmdline = format!("quiet vmprobe.probe={}", text.replace(' ', ","));
        prop_assert_eq!(from_cmdline(&on_cmdline), [Ok(spec)]);
    }

    #[test]
    fn what_can_be_read_has_a_definition_that_reads_the_same(text in near_texts()) {
        if let Ok(spec) = parse(&text) {
            prop_assert_eq!(parse(&definition(&spec)), Ok(spec));
        }
    }
}
