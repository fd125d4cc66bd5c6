//! Records for tests.

use std::sync::Arc;

use vmprobe_trace_formats as formats;

use crate::Record;

/// Returns the record of a return probe, with one argument of each kind;
/// 2026-11-27T13:17:41.023320114Z.
pub(crate) fn returned() -> Record {
    let address = |address, symbol: &str| formats::Address {
        address,
        symbol: Some(symbol.to_owned()),
    };
    Record {
        unix_ns: 1_795_785_461_023_320_114,
        host: "kvm1".into(),
        vm: "web-1".into(),
        event: formats::Record {
            probe: "read".into(),
            probe_id: 7,
            kind: "return",
            vcpu: 1,
            tsc: 4_000_000_000,
            time_ns: Some(2_000_000_000),
            task: 0xffff_8880_0123_4000,
            place: address(0xffff_ffff_812f_0c15, "vfs_read+0x5"),
            context: Some(formats::Task {
                pid: 61,
                tgid: 60,
                comm: "cat".into(),
                interrupts_off: false,
                need_resched: false,
                in_nmi: false,
                in_interrupt: false,
                in_soft_interrupt: false,
                preempt_disabled: 1,
                migrate_disabled: 0,
                soft_interrupts_off: false,
                preempt_need_resched: false,
                need_resched_lazy: false,
            }),
            arguments: vec![
                ("count".into(), formats::Value::Unsigned(u64::MAX)),
                ("dfd".into(), formats::Value::Signed(-100)),
                ("flags".into(), formats::Value::Hex(0x8000)),
                ("name".into(), formats::Value::Text("/etc/passwd".into())),
                (
                    "pair".into(),
                    formats::Value::List(vec![
                        formats::Value::Unsigned(1),
                        formats::Value::Missing,
                    ]),
                ),
                ("gone".into(), formats::Value::Missing),
            ],
            registers: vec![
                ("rip", 0xffff_ffff_8130_206a),
                ("rax", (-2_i64).cast_unsigned()),
            ],
            fault: None,
            returned: Some(formats::Return {
                value: Some((-2_i64).cast_unsigned()),
                tail_call: false,
                caller: 0xffff_ffff_8130_206a,
                caller_symbol: Some("ksys_read+0x6a".into()),
                entry_tsc: 3_999_000_000,
                duration_ns: Some(500_000),
                entry_registers: None,
            }),
            before_symbol: None,
            stack: vec![
                address(0xffff_ffff_8130_206a, "ksys_read+0x6a"),
                formats::Address {
                    address: 0x40_1000,
                    symbol: None,
                },
            ],
            stack_incomplete: false,
        },
    }
}

/// Returns the same record for another host, VM and time.
pub(crate) fn of(host: &str, vm: &str, unix_ns: u64) -> Record {
    Record {
        unix_ns,
        host: Arc::from(host),
        vm: Arc::from(vm),
        ..returned()
    }
}
