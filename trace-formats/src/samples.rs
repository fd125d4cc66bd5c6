//! A guest, probes and events for tests.

use std::sync::Arc;

use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::probe::Kind;
use vmprobe_proto::v1::value::Value as ValueKind;
use vmprobe_proto::v1::{
    Argument, ArgumentFormat, Context, Event, EventKind, InstructionProbe, Probe, Registers,
    Return, ReturnProbe, Value,
};

use crate::{Guest, Place};

pub(crate) const OPEN: u64 = 0xffff_ffff_812f_0c10;
pub(crate) const VFS_READ: u64 = 0xffff_ffff_8130_1000;
pub(crate) const KSYS_READ: u64 = 0xffff_ffff_8130_2000;

/// Makes a guest of two CPUs of 1 GHz.
pub(crate) fn guest() -> Guest {
    let symbols = |address: u64| {
        let known = [
            ("do_sys_openat2", OPEN, 0x90),
            ("vfs_read", VFS_READ, 0x310),
            ("ksys_read", KSYS_READ, 0xe0),
        ];
        let (name, start, size) = known
            .into_iter()
            .find(|(_, start, size)| (*start..start + size).contains(&address))?;
        Some(Place {
            size: Some(size),
            ..Place::new(name, address - start)
        })
    };
    Guest {
        tsc_hz: 1_000_000_000,
        cpus: 2,
        symbols: Arc::new(symbols),
    }
}

fn argument(name: &str, format: ArgumentFormat, size: u32) -> Argument {
    Argument {
        name: name.into(),
        format: format.into(),
        size,
        ..Argument::default()
    }
}

/// Makes the probes `open` at `do_sys_openat2`, `done` at the returns of `vfs_read`, `read` at its
/// entry.
pub(crate) fn probes() -> Vec<Probe> {
    vec![
        Probe {
            id: 1,
            name: "open".into(),
            address: OPEN,
            symbol: "do_sys_openat2".into(),
            kind: Some(Kind::InstructionProbe(InstructionProbe::default())),
            arguments: vec![
                argument("dfd", ArgumentFormat::Hex, 4),
                argument("name", ArgumentFormat::String, 0),
            ],
            ..Probe::default()
        },
        Probe {
            id: 2,
            name: "done".into(),
            address: VFS_READ,
            symbol: "vfs_read".into(),
            kind: Some(Kind::ReturnProbe(ReturnProbe::default())),
            arguments: vec![argument("arg1", ArgumentFormat::Hex, 8)],
            ..Probe::default()
        },
        Probe {
            id: 3,
            name: "read".into(),
            address: VFS_READ,
            symbol: "vfs_read".into(),
            kind: Some(Kind::InstructionProbe(InstructionProbe::default())),
            ..Probe::default()
        },
    ]
}

pub(crate) fn text(text: &[u8]) -> Value {
    Value {
        value: Some(ValueKind::Text(text.into())),
    }
}

pub(crate) fn unsigned(number: u64) -> Value {
    Value {
        value: Some(ValueKind::Unsigned(number)),
    }
}

fn context(time_ns: u64) -> Context {
    Context {
        pid: 1234,
        tgid: 1230,
        comm: b"cat".into(),
        time_ns,
        ..Context::default()
    }
}

/// Makes the event of `cat` opening a file.
pub(crate) fn open() -> Event {
    Event {
        probe_id: 1,
        vcpu: 1,
        tsc: 500_000,
        kind: EventKind::Pre.into(),
        task: 0xffff_8880_0123_4000,
        registers: Some(Registers {
            rip: OPEN,
            rdi: 0xffff_ff9c,
            ..Registers::default()
        }),
        values: vec![unsigned(0xffff_ff9c), text(b"/etc/passwd")],
        context: Some(Context {
            interrupts_off: true,
            preempt_disabled: 1,
            ..context(123_456_789_999)
        }),
        ..Event::default()
    }
}

/// Makes the event of [`open`] with a stack, whose outermost address has no symbol.
pub(crate) fn with_stack() -> Event {
    Event {
        stack: vec![OPEN, KSYS_READ + 0x6a, 0x0040_1000],
        ..open()
    }
}

/// Makes the entry of the call that [`returned`] ends.
pub(crate) fn read() -> Event {
    Event {
        probe_id: 3,
        vcpu: 0,
        tsc: 509_001,
        kind: EventKind::Pre.into(),
        context: Some(context(123_456_799_001)),
        ..Event::default()
    }
}

/// Makes the return from `vfs_read` after 3 us.
pub(crate) fn returned() -> Event {
    Event {
        probe_id: 2,
        vcpu: 1,
        tsc: 512_001,
        kind: EventKind::Return.into(),
        registers: Some(Registers {
            rax: 0x10,
            ..Registers::default()
        }),
        detail: Some(Detail::Return(Return {
            caller: KSYS_READ + 0x6a,
            entry_tsc: 509_001,
            entry: Some(Registers {
                rdi: 3,
                ..Registers::default()
            }),
            tail_call: false,
        })),
        values: vec![unsigned(0x10)],
        context: Some(context(123_456_801_999)),
        ..Event::default()
    }
}
