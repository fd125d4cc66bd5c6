use std::process::Command;

use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::value::Value as ValueKind;
use vmprobe_proto::v1::{
    Argument, ArgumentFormat, EventKind, Fault, FaultyPointer, Value, ValueList,
};

use super::*;
use crate::samples;

/// Returns what trace-cmd makes of the events. `deploy/setup.sh` installs it.
fn report(probes: &[Probe], events: impl IntoIterator<Item = Result<Event, u64>>) -> String {
    report_with(&["-t"], probes, events)
}

fn report_with(
    options: &[&str],
    probes: &[Probe],
    events: impl IntoIterator<Item = Result<Event, u64>>,
) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.dat");
    let out = std::fs::File::create(&path).unwrap();
    let mut writer = TraceDat::new(out, &samples::guest()).unwrap();
    writer.begin(probes).unwrap();
    for event in events {
        match event {
            Ok(event) => writer.event(&event).unwrap(),
            Err(lost) => writer.lost(lost).unwrap(),
        }
    }
    writer.finish().unwrap();
    let output = Command::new("trace-cmd")
        .arg("report")
        .args(options)
        .arg("-i")
        .arg(&path)
        .output()
        .expect("trace-cmd is missing: deploy/setup.sh installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "", "trace-cmd has nothing to complain of");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn trace_cmd_reports_the_events_in_their_order() {
    let events = [samples::open(), samples::read(), samples::returned()];
    assert_eq!(
        report(&samples::probes(), events.map(Ok)),
        "\
cpus=2
             cat-1234  [001]   123.456789999: open:                 (do_sys_openat2+0x0) dfd=0xffffff9c name=\"/etc/passwd\"
             cat-1234  [000]   123.456799001: read:                 (vfs_read+0x0)
             cat-1234  [001]   123.456801999: done:                 (ksys_read+0x6a <- vfs_read) arg1=0x10
"
    );
}

#[test]
fn trace_cmd_reports_the_flags() {
    let mut event = samples::open();
    let context = event.context.as_mut().unwrap();
    (context.need_resched, context.in_interrupt) = (true, true);
    let mut unknown = samples::open();
    unknown.context = None;
    let text = report_with(&["-l"], &samples::probes(), [Ok(event), Ok(unknown)]);
    assert!(text.contains("cat-1234    1dNh1"), "{text}");
    assert!(text.contains("1X..."), "{text}");
}

#[test]
fn trace_cmd_reports_stacks_and_what_was_lost() {
    let text = report(
        &samples::probes(),
        [
            Err(5),
            Ok(samples::with_stack()),
            Err(7),
            Ok(samples::open()),
        ],
    );
    for part in [
        "CPU:1 [5 EVENTS DROPPED]",
        "CPU:1 [7 EVENTS DROPPED]",
        "kernel_stack:         <stack trace >\n=> do_sys_openat2 (ffffffff812f0c10)\n=> ksys_read (ffffffff8130206a)\n=> 0x401000 (401000)\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn trace_cmd_reports_values_of_every_type() {
    let argument = |name: &str, format: ArgumentFormat, size, elements| Argument {
        name: name.into(),
        format: format.into(),
        size,
        elements,
        ..Argument::default()
    };
    let list = |numbers: &[u64]| Value {
        value: Some(ValueKind::List(ValueList {
            values: numbers.iter().copied().map(samples::unsigned).collect(),
        })),
    };
    let signed = |number| Value {
        value: Some(ValueKind::Signed(number)),
    };
    let all = [
        (
            argument("u8", ArgumentFormat::Unsigned, 1, 0),
            samples::unsigned(255),
        ),
        (argument("s8", ArgumentFormat::Signed, 1, 0), signed(-1)),
        (argument("s32", ArgumentFormat::Signed, 4, 0), signed(-100)),
        (
            argument("s64", ArgumentFormat::Signed, 8, 0),
            signed(i64::MIN),
        ),
        (argument("s16", ArgumentFormat::Signed, 2, 0), signed(-2)),
        (
            argument("x16", ArgumentFormat::Hex, 2, 0),
            samples::unsigned(0xbeef),
        ),
        (
            argument("x64", ArgumentFormat::Hex, 8, 0),
            samples::unsigned(u64::MAX),
        ),
        (
            argument("c", ArgumentFormat::Char, 1, 0),
            samples::unsigned(b'A'.into()),
        ),
        (
            argument("none", ArgumentFormat::String, 0, 0),
            samples::text(b""),
        ),
        (
            argument("text", ArgumentFormat::Text, 0, 0),
            samples::text(b"{.a=1,.b=2}"),
        ),
        (
            argument("u16s", ArgumentFormat::Unsigned, 2, 3),
            list(&[1, 2, 3]),
        ),
        (argument("x64s", ArgumentFormat::Hex, 8, 2), list(&[16, 17])),
        (
            argument("common_pid", ArgumentFormat::Unsigned, 4, 0),
            samples::unsigned(7),
        ),
        (
            argument("u8", ArgumentFormat::Unsigned, 8, 0),
            samples::unsigned(u64::MAX),
        ),
    ];
    let (arguments, values): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let mut probes = samples::probes();
    probes[0].name = "fs/open+0x5%x\"".into();
    probes[0].arguments = arguments;
    let typed = Event {
        values,
        ..samples::open()
    };
    let mut faulty = typed.clone();
    faulty.values[5] = Value {
        value: Some(ValueKind::Fault(FaultyPointer {})),
    };
    let text = report(&probes, [Ok(typed.clone()), Ok(faulty), Ok(typed)]);
    let ends: Vec<&str> = text
        .lines()
        .skip(1)
        .map(|line| line.split_once(" open").unwrap().1)
        .collect();
    let start = "_0x5_x_:          (do_sys_openat2+0x0) u8=255 s8=-1 s32=-100 s64=-9223372036854775808 s16=-2";
    let end = "x64=0xffffffffffffffff c='A' none=\"\" text={.a=1,.b=2} u16s={1,2,3} x64s={0x10,0x11} \
               common_pid=7 u8=18446744073709551615";
    let typed = format!("{start} x16=0xbeef {end}");
    let faulty = format!("{start} x16=(fault) {end}");
    assert_eq!(ends, [&*typed, &faulty, &typed]);
}

#[test]
fn trace_cmd_reports_what_the_kernel_has_no_event_for() {
    let mut fault = samples::open();
    fault.set_kind(EventKind::Fault);
    fault.detail = Some(Detail::Fault(Fault {
        vector: 14,
        error_code: Some(2),
        address: Some(16),
    }));
    let unknown = Event {
        probe_id: 99,
        values: vec![samples::unsigned(5)],
        tsc: u64::MAX,
        ..Event::default()
    };
    let text = report(&samples::probes(), [Ok(fault), Ok(unknown)]);
    assert!(
        text.contains("name=\"/etc/passwd\" (fault #PF error 0x2 at 0x10)\n"),
        "{text}"
    );
    assert!(
        text.contains("_99:                  (0x0) arg1=5\n"),
        "{text}"
    );
}

#[test]
fn many_events_fill_pages_and_keep_their_times() {
    let mut expected = Vec::new();
    let mut events = Vec::new();
    for number in 0..5000_u64 {
        let mut event = samples::open();
        event.vcpu = u32::try_from(number % 3).unwrap();
        let context = event.context.as_mut().unwrap();
        // Steps of a nanosecond and of a second.
        context.time_ns = 1_000_000_000 * (number / 100 + 1) + number;
        expected.push(format!(
            "{}.{:09}",
            context.time_ns / 1_000_000_000,
            context.time_ns % 1_000_000_000
        ));
        event.values = vec![
            samples::unsigned(number),
            samples::text("x".repeat((number % 300) as usize).as_bytes()),
        ];
        events.push(Ok(event));
    }
    let text = report(&samples::probes(), events);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("cpus=3"));
    let mut count = 0;
    for (number, line) in lines.enumerate() {
        assert!(
            line.contains(&format!(" {}: open:", expected[number])),
            "{number} {line}"
        );
        let values = format!("dfd={number:#x} name=\"{}\"", "x".repeat(number % 300));
        assert!(line.ends_with(&values), "{number} {line}");
        count += 1;
    }
    assert_eq!(count, 5000);
}

#[test]
fn events_out_of_order_keep_their_times() {
    let at = |time_ns| {
        let mut event = samples::open();
        event.context.as_mut().unwrap().time_ns = time_ns;
        Ok(event)
    };
    let text = report(
        &samples::probes(),
        [at(5_000_000_000), at(3_000_000_000), at(6_000_000_000)],
    );
    for time in ["5.000000000: ", "3.000000000: ", "6.000000000: "] {
        assert!(text.contains(time), "{text}");
    }
}

#[test]
fn a_text_that_fills_more_than_a_page_is_cut() {
    let mut event = samples::open();
    event.values[1] = samples::text(&[b'x'; 100_000]);
    let text = report(&samples::probes(), [Ok(event)]);
    let line = text.lines().nth(1).unwrap();
    assert!(
        line.len() > 3900 && line.ends_with("xxx\""),
        "{}",
        line.len()
    );
}

#[test]
fn a_vcpu_beyond_all_is_an_error() {
    let mut writer = TraceDat::new(io::sink(), &samples::guest()).unwrap();
    let event = Event {
        vcpu: u32::MAX,
        ..samples::open()
    };
    assert_eq!(
        writer.event(&event).unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
}

#[test]
fn a_recording_without_events_is_a_file_too() {
    assert_eq!(report(&samples::probes(), []), "cpus=2\n");
}
