use row_report::proves;
use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::probe::Kind;
use vmprobe_proto::v1::value::Value as ValueKind;
use vmprobe_proto::v1::{
    Argument, ArgumentFormat, Capture, EventKind, Fault, FaultyPointer, InstructionProbe,
    ProbeOptions, Register, Value, ValueList,
};

use super::*;
use crate::samples;

const SCHEMA: &str = include_str!("../../../docs/trace-event.schema.json");

fn lines(probes: &[Probe], events: &[Event]) -> Vec<String> {
    let mut out = Vec::new();
    let mut writer = JsonLines::new(&mut out, &samples::guest());
    writer.begin(probes).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.lost(5).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(str::to_owned).collect()
}

fn check(lines: &[String]) {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for line in lines {
        let value = serde_json::from_str(line).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|e| e.to_string())
            .collect();
        assert!(errors.is_empty(), "{line}\n{errors:?}");
    }
}

#[test]
fn a_stack_without_all_of_its_callers_says_so() {
    let mut event = samples::with_stack();
    event.stack_incomplete = true;
    let lines = lines(&samples::probes(), &[event]);
    check(&lines);
    assert!(
        lines[0].ends_with(r#"}],"stack_incomplete":true}"#),
        "{}",
        lines[0]
    );
}

#[test]
fn an_event_is_one_line_with_every_field_in_its_order() {
    let name = "an_event_is_one_line_with_every_field_in_its_order";
    proves(&["TR08"], name, || {
        let lines = lines(&samples::probes(), &[samples::with_stack()]);
        assert_eq!(
            lines[0],
            concat!(
                r#"{"probe":"open","probe_id":1,"kind":"pre","vcpu":1,"tsc":500000,"time_ns":123456789999,"#,
                r#""task":"0xffff888001234000","#,
                r#""place":{"address":"0xffffffff812f0c10","symbol":"do_sys_openat2+0x0"},"#,
                r#""context":{"pid":1234,"tgid":1230,"comm":"cat","interrupts_off":true,"need_resched":false,"#,
                r#""in_nmi":false,"in_interrupt":false,"in_soft_interrupt":false,"preempt_disabled":1,"#,
                r#""migrate_disabled":0,"soft_interrupts_off":false,"preempt_need_resched":false,"need_resched_lazy":false},"#,
                r#""arguments":{"dfd":"0xffffff9c","name":"/etc/passwd"},"#,
                r#""registers":{"rip":"0xffffffff812f0c10","rsp":"0x0","rflags":"0x0","rax":"0x0","rbx":"0x0","#,
                r#""rcx":"0x0","rdx":"0x0","rsi":"0x0","rdi":"0xffffff9c","rbp":"0x0","r8":"0x0","r9":"0x0","#,
                r#""r10":"0x0","r11":"0x0","r12":"0x0","r13":"0x0","r14":"0x0","r15":"0x0"},"#,
                r#""stack":[{"address":"0xffffffff812f0c10","symbol":"do_sys_openat2+0x0"},"#,
                r#"{"address":"0xffffffff8130206a","symbol":"ksys_read+0x6a"},"#,
                r#"{"address":"0x401000","symbol":null}]}"#
            )
        );
        assert_eq!(lines[1], r#"{"lost":5}"#);
        check(&lines);
        String::new()
    });
}

#[test]
fn a_return_has_its_caller_and_its_duration() {
    let lines = lines(&samples::probes(), &[samples::returned()]);
    let start = concat!(
        r#""return":{"value":"0x10","tail_call":false,"caller":"0xffffffff8130206a","#,
        r#""caller_symbol":"ksys_read+0x6a","entry_tsc":509001,"duration_ns":3000,"entry_registers":{"rip":"#
    );
    assert!(lines[0].contains(start), "{}", lines[0]);
    check(&lines);
}

#[test]
fn only_the_registers_that_a_probe_chooses_are_there() {
    let mut probes = samples::probes();
    let mut options = ProbeOptions::default();
    options.set_capture(Capture::Registers);
    options.push_registers(Register::Rdi);
    probes[1].options = Some(options);
    let lines = lines(&probes, &[samples::returned()]);
    let value: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(value["registers"].as_object().unwrap().len(), 2);
    assert!(value["return"]["value"].is_null());
    assert_eq!(value["return"]["entry_registers"]["rdi"], "0x3");
    check(&lines);
}

#[test]
fn every_kind_of_value_and_event_meets_the_schema() {
    let kinds = [
        (
            ArgumentFormat::Unsigned,
            ValueKind::Unsigned(u64::MAX),
            "18446744073709551615",
        ),
        (ArgumentFormat::Signed, ValueKind::Signed(-100), "-100"),
        (ArgumentFormat::Char, ValueKind::Unsigned(0x41), "\"A\""),
        (
            ArgumentFormat::Text,
            ValueKind::Text(b"a\xff".into()),
            "\"a\\\\xff\"",
        ),
        (
            ArgumentFormat::Hex,
            ValueKind::Fault(FaultyPointer {}),
            "null",
        ),
        (
            ArgumentFormat::Hex,
            ValueKind::List(ValueList {
                values: vec![samples::unsigned(1), samples::unsigned(2)],
            }),
            "[\"0x1\",\"0x2\"]",
        ),
    ];
    for (format, kind, text) in kinds {
        let probe = Probe {
            id: 1,
            arguments: vec![Argument {
                name: "a".into(),
                format: format.into(),
                ..Argument::default()
            }],
            kind: Some(Kind::InstructionProbe(InstructionProbe::default())),
            ..Probe::default()
        };
        let event = Event {
            probe_id: 1,
            values: vec![Value { value: Some(kind) }],
            ..Event::default()
        };
        let lines = lines(&[probe], &[event]);
        assert!(
            lines[0].contains(&format!("\"arguments\":{{\"a\":{text}}}")),
            "{}",
            lines[0]
        );
        check(&lines);
    }
    let mut events = vec![Event::default()];
    for kind in [EventKind::Post, EventKind::Access, EventKind::Fault] {
        let mut event = samples::open();
        event.set_kind(kind);
        if kind == EventKind::Fault {
            event.detail = Some(Detail::Fault(Fault {
                vector: 14,
                error_code: Some(0),
                address: Some(8),
            }));
        }
        events.push(event);
    }
    check(&lines(&samples::probes(), &events));
}

#[test]
fn the_schema_refuses_what_is_no_event() {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let good = lines(&samples::probes(), &[samples::returned()]);
    let good: serde_json::Value = serde_json::from_str(&good[0]).unwrap();
    assert!(validator.is_valid(&good));
    for (pointer, wrong) in [
        ("/kind", serde_json::json!("hit")),
        ("/tsc", serde_json::json!("5")),
        ("/task", serde_json::json!(5)),
        ("/context/comm", serde_json::json!(null)),
        ("/return/caller", serde_json::json!("8130206a")),
        ("/stack", serde_json::json!(null)),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = wrong;
        assert!(!validator.is_valid(&bad), "{pointer}");
    }
    assert!(!validator.is_valid(&serde_json::json!({})));
    assert!(!validator.is_valid(&serde_json::json!({"lost": -1})));
}
