use vmprobe_proto::v1::{EventKind, Registers};

use super::*;
use crate::samples;

fn text(header: Header, events: &[Event]) -> String {
    let mut out = Vec::new();
    let mut writer = Ftrace::new(&mut out, &samples::guest(), header).unwrap();
    writer.begin(&samples::probes()).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_event_is_the_line_that_the_kernel_prints() {
    assert_eq!(
        text(Header::None, &[samples::open(), samples::returned()]),
        "             cat-1234    [001] d..1.   123.456789: open: (do_sys_openat2+0x0/0x90) dfd=0xffffff9c name=\"/etc/passwd\"
             cat-1234    [001] .....   123.456801: done: (ksys_read+0x6a/0xe0 <- vfs_read) arg1=0x10
"
    );
}

#[test]
fn a_file_begins_with_the_kernels_header_and_counts_what_was_lost() {
    let mut out = Vec::new();
    let mut writer = Ftrace::new(&mut out, &samples::guest(), Header::Full).unwrap();
    writer.begin(&samples::probes()).unwrap();
    writer.lost(5).unwrap();
    writer.event(&samples::with_stack()).unwrap();
    writer.finish().unwrap();
    drop(writer);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "\
# tracer: nop
#
# entries-in-buffer/entries-written: 2/7   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
[LOST 5 EVENTS]
             cat-1234    [001] d..1.   123.456789: open: (do_sys_openat2+0x0/0x90) dfd=0xffffff9c name=\"/etc/passwd\"
             cat-1234    [001] d..1.   123.456789: <stack trace>
 => do_sys_openat2
 => ksys_read
 => 0x00401000
"
    );
}

#[test]
fn the_flags_are_the_kernels_characters() {
    let none = Context::default();
    for (context, text) in [
        (none.clone(), "....."),
        (
            Context {
                interrupts_off: true,
                ..none.clone()
            },
            "d....",
        ),
        (
            Context {
                need_resched: true,
                preempt_need_resched: true,
                ..none.clone()
            },
            ".N...",
        ),
        (
            Context {
                in_soft_interrupt: true,
                ..none.clone()
            },
            "..s..",
        ),
        (
            Context {
                in_interrupt: true,
                ..none.clone()
            },
            "..h..",
        ),
        (
            Context {
                in_interrupt: true,
                in_soft_interrupt: true,
                ..none.clone()
            },
            "..H..",
        ),
        (
            Context {
                in_nmi: true,
                ..none.clone()
            },
            "..z..",
        ),
        (
            Context {
                in_nmi: true,
                in_interrupt: true,
                ..none.clone()
            },
            "..Z..",
        ),
        (
            Context {
                preempt_disabled: 10,
                ..none.clone()
            },
            "...a.",
        ),
        (
            Context {
                preempt_disabled: 999,
                ..none.clone()
            },
            "...f.",
        ),
        (
            Context {
                migrate_disabled: 2,
                ..none.clone()
            },
            "....2",
        ),
        (
            Context {
                need_resched: true,
                ..none.clone()
            },
            ".n...",
        ),
        (
            Context {
                preempt_need_resched: true,
                soft_interrupts_off: true,
                ..none.clone()
            },
            "bp...",
        ),
        (
            Context {
                interrupts_off: true,
                soft_interrupts_off: true,
                need_resched_lazy: true,
                ..none.clone()
            },
            "Dl...",
        ),
    ] {
        assert_eq!(flags(Some(&context)), text, "{context:?}");
    }
    assert_eq!(flags(None), "X....");
}

#[test]
fn tasks_without_a_name_are_called_what_the_kernel_calls_them() {
    let mut event = samples::open();
    event.values.clear();
    let task = |event: &Event| text(Header::None, std::slice::from_ref(event))[..29].to_owned();
    if let Some(context) = &mut event.context {
        context.comm.clear();
    }
    assert_eq!(task(&event), "           <...>-1234    [001");
    event.context = Some(Context {
        comm: b"swapper/1".into(),
        ..Context::default()
    });
    assert_eq!(task(&event), "          <idle>-0       [001");
    event.context = None;
    assert_eq!(task(&event), "           <...>-0       [001");
}

#[test]
fn without_a_clock_times_are_ticks() {
    let mut out = Vec::new();
    let guest = Guest {
        tsc_hz: 0,
        ..samples::guest()
    };
    let mut writer = Ftrace::new(&mut out, &guest, Header::None).unwrap();
    writer
        .event(&Event {
            probe_id: 7,
            tsc: 4711,
            ..Event::default()
        })
        .unwrap();
    drop(writer);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "           <...>-0       [000] X....         4711: #7: (0)\n"
    );
}

#[test]
fn what_the_kernel_has_no_event_for_is_marked() {
    let mut event = samples::open();
    event.values.clear();
    event.set_kind(EventKind::Post);
    assert!(
        text(Header::None, &[event.clone()]).ends_with("open: (do_sys_openat2+0x0/0x90) (post)\n")
    );
    event.set_kind(EventKind::Access);
    event.registers = Some(Registers {
        rip: samples::KSYS_READ + 0x6a,
        ..Registers::default()
    });
    assert!(text(Header::None, &[event]).ends_with("open: (ksys_read+0x6a/0xe0) (access)\n"));
}

#[test]
fn a_guest_cannot_make_up_lines() {
    let mut event = samples::open();
    if let Some(context) = &mut event.context {
        context.comm = b"a\nb".into();
    }
    event.values = vec![samples::text(b"x"), samples::text(b"\n\x1b[2J")];
    let text = text(Header::None, &[event]);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("          a\\x0ab-1234 "), "{text}");
    assert!(text.ends_with(" dfd=x name=\"\\x0a\\x1b[2J\"\n"), "{text}");
}

#[test]
fn a_live_text_may_have_the_headers_columns_before_its_first_line() {
    let text = text(Header::Columns, &[samples::open(), samples::returned()]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["# tracer: nop", "#"]);
    assert!(lines[8].starts_with("#           TASK-PID"), "{text}");
    assert!(lines[10].ends_with("name=\"/etc/passwd\""), "{text}");
    assert_eq!(lines.len(), 12);
}
