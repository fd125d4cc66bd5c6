//! Events.

use guest_state::Registers;
use probe_engine::event::{Detail, Event};
use vmprobe_proto::v1;
use vmprobe_proto::v1::EventKind;
use vmprobe_proto::v1::event::Detail as WireDetail;

/// Returns the protocol's form of an event.
pub fn event(event: &Event) -> v1::Event {
    let (kind, detail) = match event.detail {
        Detail::Pre => (EventKind::Pre, None),
        Detail::Post => (EventKind::Post, None),
        Detail::Access => (EventKind::Access, None),
        Detail::Fault {
            vector,
            error_code,
            address,
        } => {
            let fault = v1::Fault {
                vector: vector.into(),
                error_code,
                address: address.map(|address| address.0),
            };
            (EventKind::Fault, Some(WireDetail::Fault(fault)))
        }
        Detail::Return {
            caller,
            entry_tsc,
            ref entry,
            tail_call,
        } => {
            let returned = v1::Return {
                caller: caller.0,
                entry_tsc: entry_tsc.0,
                entry: Some(registers(entry)),
                tail_call,
            };
            (EventKind::Return, Some(WireDetail::Return(returned)))
        }
    };
    v1::Event {
        probe_id: event.probe.0,
        vcpu: event.vcpu.0,
        tsc: event.tsc.0,
        registers: Some(registers(&event.registers)),
        kind: kind.into(),
        detail,
        task: event.task,
        stack: event.stack.addresses.to_vec(),
        stack_incomplete: event.stack.is_cut,
        ..v1::Event::default()
    }
}

/// Returns the protocol's form of the general registers.
pub fn registers(registers: &Registers) -> v1::Registers {
    let r = registers;
    v1::Registers {
        rax: r.rax,
        rbx: r.rbx,
        rcx: r.rcx,
        rdx: r.rdx,
        rsi: r.rsi,
        rdi: r.rdi,
        rsp: r.rsp,
        rbp: r.rbp,
        r8: r.r8,
        r9: r.r9,
        r10: r.r10,
        r11: r.r11,
        r12: r.r12,
        r13: r.r13,
        r14: r.r14,
        r15: r.r15,
        rip: r.rip,
        rflags: r.rflags,
    }
}

#[cfg(test)]
mod tests {
    use guest_state::{GuestVirtAddr, Tsc, VcpuId};

    use super::*;
    use probe_engine::event::Stack;
    use probe_engine::probe::ProbeId;
    use probe_engine::value::Recorded;

    fn told(detail: Detail) -> v1::Event {
        event(&Event {
            probe: ProbeId(7),
            vcpu: VcpuId(2),
            tsc: Tsc(99),
            registers: Registers {
                rip: 0x40,
                ..Registers::default()
            },
            task: 0x77,
            context: None,
            time_ns: 0,
            stack: Stack::default(),
            flags: None,
            values: Recorded::default(),
            detail,
        })
    }

    #[test]
    fn each_kind_of_event_is_told_with_its_details() {
        for (detail, kind) in [
            (Detail::Pre, EventKind::Pre),
            (Detail::Post, EventKind::Post),
            (Detail::Access, EventKind::Access),
        ] {
            let event = told(detail);
            assert_eq!((event.kind(), event.detail), (kind, None));
            assert_eq!((event.probe_id, event.vcpu, event.tsc), (7, 2, 99));
            assert_eq!(event.task, 0x77);
            assert_eq!(event.registers.unwrap().rip, 0x40);
        }
    }

    #[test]
    fn a_fault_keeps_what_it_has_and_lacks() {
        let page_fault = told(Detail::Fault {
            vector: 14,
            error_code: Some(2),
            address: Some(GuestVirtAddr(0x1234)),
        });
        assert_eq!(page_fault.kind(), EventKind::Fault);
        let expected = v1::Fault {
            vector: 14,
            error_code: Some(2),
            address: Some(0x1234),
        };
        assert_eq!(page_fault.detail, Some(WireDetail::Fault(expected)));

        let divide = told(Detail::Fault {
            vector: 0,
            error_code: None,
            address: None,
        });
        assert_eq!(divide.detail, Some(WireDetail::Fault(v1::Fault::default())));
    }

    #[test]
    fn a_return_tells_of_its_call() {
        let entry = Registers {
            rdi: 3,
            ..Registers::default()
        };
        let event = told(Detail::Return {
            caller: GuestVirtAddr(0x50),
            entry_tsc: Tsc(90),
            entry: Box::new(entry),
            tail_call: true,
        });
        assert_eq!(event.kind(), EventKind::Return);
        let Some(WireDetail::Return(returned)) = event.detail else {
            panic!("{event:?}");
        };
        assert_eq!((returned.caller, returned.entry_tsc), (0x50, 90));
        assert!(returned.tail_call);
        assert_eq!(returned.entry.unwrap().rdi, 3);
    }
}
