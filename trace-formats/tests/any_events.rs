//! No event, however odd, makes a writer panic.

use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::probe::Kind;
use vmprobe_proto::v1::value::Value as ValueKind;
use vmprobe_proto::v1::{
    Argument, Context, Event, Fault, FaultyPointer, InstructionProbe, Probe, ProbeOptions,
    Registers, Return, ReturnProbe, Value, ValueList, Watchpoint,
};
use vmprobe_trace_formats::{Format, Guest, Place, create};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..5000_u64, any::<u64>()]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..9_u32, 1 => any::<u32>()]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-z;/ \"%\n\\x1b]{0,20}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..40),
        Just(vec![b'x'; 10_000]),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(None),
        number().prop_map(|number| Some(ValueKind::Unsigned(number))),
        any::<i64>().prop_map(|number| Some(ValueKind::Signed(number))),
        bytes().prop_map(|text| Some(ValueKind::Text(text))),
        Just(Some(ValueKind::Fault(FaultyPointer {}))),
    ]
    .prop_map(|value| Value { value });
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop::collection::vec(inner, 0..5).prop_map(|values| Value {
            value: Some(ValueKind::List(ValueList { values })),
        })
    })
}

fn context() -> impl Strategy<Value = Context> {
    (
        small(),
        small(),
        bytes(),
        number(),
        any::<[bool; 5]>(),
        small(),
        small(),
    )
        .prop_map(
            |(pid, tgid, comm, time_ns, [a, b, c, d, e], preempt_disabled, migrate_disabled)| {
                Context {
                    pid,
                    tgid,
                    comm,
                    time_ns,
                    interrupts_off: a,
                    need_resched: b,
                    in_nmi: c,
                    in_interrupt: d,
                    in_soft_interrupt: e,
                    preempt_disabled,
                    migrate_disabled,
                    soft_interrupts_off: a ^ b,
                    preempt_need_resched: c ^ d,
                    need_resched_lazy: d ^ e,
                }
            },
        )
}

fn detail() -> impl Strategy<Value = Detail> {
    prop_oneof![
        (small(), any::<Option<u32>>(), any::<Option<u64>>()).prop_map(
            |(vector, error_code, address)| Detail::Fault(Fault {
                vector,
                error_code,
                address
            })
        ),
        (number(), number(), any::<bool>()).prop_map(|(caller, entry_tsc, tail_call)| {
            Detail::Return(Return {
                caller,
                entry_tsc,
                entry: None,
                tail_call,
            })
        }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    (
        (
            0..5_u64,
            prop_oneof![9 => 0..3_u32, 1 => any::<u32>()],
            number(),
            -1..7,
        ),
        prop::option::of(detail()),
        prop::collection::vec(value(), 0..5),
        prop::option::of(context()),
        (prop::collection::vec(number(), 0..6), any::<bool>()),
        number(),
    )
        .prop_map(
            |(
                (probe_id, vcpu, tsc, kind),
                detail,
                values,
                context,
                (stack, stack_incomplete),
                rip,
            )| Event {
                probe_id,
                vcpu,
                tsc,
                kind,
                detail,
                values,
                context,
                stack,
                stack_incomplete,
                task: tsc,
                registers: Some(Registers {
                    rip,
                    ..Registers::default()
                }),
            },
        )
}

fn argument() -> impl Strategy<Value = Argument> {
    (
        "[a-z_ %\"\n]{0,9}",
        -1..8,
        prop_oneof![Just(1), Just(2), Just(4), Just(8), small()],
        small(),
    )
        .prop_map(|(name, format, size, elements)| Argument {
            name,
            format,
            size,
            elements: if elements < 5 { 0 } else { elements },
            ..Argument::default()
        })
}

fn probe() -> impl Strategy<Value = Probe> {
    let kind = prop_oneof![
        Just(Kind::InstructionProbe(InstructionProbe::default())),
        Just(Kind::ReturnProbe(ReturnProbe::default())),
        Just(Kind::Watchpoint(Watchpoint::default())),
    ];
    let options = (-1..5, prop::collection::vec(-1..20, 0..3));
    (
        (
            0..4_u64,
            "\\PC{0,9}",
            number(),
            "[a-z]{0,3}",
            number(),
            "[a-z\n]{0,3}",
        ),
        prop::option::of(kind),
        prop::collection::vec(argument(), 0..4),
        prop::option::of(options),
    )
        .prop_map(
            |((id, name, address, symbol, offset, module), kind, arguments, options)| Probe {
                id,
                name,
                address,
                symbol,
                offset,
                module,
                kind,
                arguments,
                options: options.map(|(capture, registers)| ProbeOptions {
                    capture,
                    registers,
                    ..ProbeOptions::default()
                }),
                ..Probe::default()
            },
        )
}

fn guest(tsc_hz: u64) -> Guest {
    // Odd names, and offsets that are too large.
    let symbols = |address: u64| {
        address.is_multiple_of(3).then(|| Place {
            size: address.is_multiple_of(2).then_some(address),
            module: if address.is_multiple_of(5) {
                "m\n".into()
            } else {
                String::new()
            },
            ..Place::new(format!("f {address}\n;"), address.wrapping_mul(7))
        })
    };
    Guest {
        tsc_hz,
        cpus: 2,
        symbols: Arc::new(symbols),
    }
}

fn write(
    path: &Path,
    guest: &Guest,
    probes: &[Probe],
    events: &[Event],
) -> Result<(), Box<dyn Error>> {
    let mut writer = create(path, guest)?;
    writer.begin(probes)?;
    for event in events {
        // An event for which a format has no room is an error and nothing else.
        if let Err(error) = writer.event(event) {
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
        writer.lost(event.tsc)?;
    }
    if let Err(error) = writer.finish() {
        assert!(error.to_string().contains("a flame graph needs"), "{error}");
        assert!(events.iter().all(|event| event.stack.is_empty()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_events_can_be_written_in_any_format(
        hz in number(),
        probes in prop::collection::vec(probe(), 0..4),
        events in prop::collection::vec(event(), 0..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        for (ending, _) in Format::ENDINGS {
            write(&folder.path().join(format!("x.{ending}")), &guest(hz), &probes, &events).unwrap();
        }
        // A line of output stays one line.
        let read = |ending: &str| std::fs::read_to_string(folder.path().join(ending)).unwrap();
        let json = read("x.json");
        prop_assert_eq!(json.lines().count(), 2 * events.len());
        for line in json.lines() {
            prop_assert!(serde_json::from_str::<serde_json::Value>(line).is_ok());
        }
        let stacks = events.iter().filter(|event| !event.stack.is_empty());
        let frames: usize = stacks.map(|event| event.stack.len() + 1).sum();
        prop_assert_eq!(read("x.txt").lines().count(), 12 + 2 * events.len() + frames);
    }
}

#[test]
fn the_ending_tells_the_format() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["trace", "trace.", "trace.doc", ".svg"] {
        let error = create(&folder.path().join(name), &guest(1)).err().unwrap();
        assert!(
            error.to_string().ends_with(".dat, .folded or .svg"),
            "{error}"
        );
        assert!(!folder.path().join(name).exists());
    }
    assert_eq!(Format::of(Path::new("a.b.PFTRACE")), Some(Format::Perfetto));
    let error = create(&folder.path().join("none/x.txt"), &guest(1))
        .err()
        .unwrap();
    assert!(error.to_string().starts_with("can't create "), "{error}");
}
