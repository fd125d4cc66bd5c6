//! What an event is, in words.

use vmprobe_proto::v1::event::Detail;
use vmprobe_proto::v1::{Event, EventKind, Fault, Registers, Return};

/// Returns one word for the event's kind.
pub(crate) fn kind_name(event: &Event) -> &'static str {
    match (event.kind(), &event.detail) {
        (EventKind::Post, _) => "post",
        (EventKind::Fault, _) | (EventKind::Unspecified, Some(Detail::Fault(_))) => "fault",
        (EventKind::Return, _) | (EventKind::Unspecified, Some(Detail::Return(_))) => "return",
        (EventKind::Access, _) => "access",
        (EventKind::Pre, _) | (EventKind::Unspecified, None) => "pre",
    }
}

/// Returns the details of a function's return, if the event is one.
pub(crate) fn returned(event: &Event) -> Option<&Return> {
    match &event.detail {
        Some(Detail::Return(returned)) if kind_name(event) == "return" => Some(returned),
        _ => None,
    }
}

/// Returns a note on an event that the kernel's own events never are, as text to append: `(post)`, `(access)`, `(tail
/// call)` or `(fault #PF error 0x2 at 0x10)`.
pub(crate) fn note(event: &Event) -> Option<String> {
    match (kind_name(event), &event.detail) {
        ("post", _) => Some("(post)".into()),
        ("access", _) => Some("(access)".into()),
        ("fault", Some(Detail::Fault(fault))) => Some(format!("(fault {})", fault_text(fault))),
        ("fault", _) => Some("(fault)".into()),
        ("return", Some(Detail::Return(returned))) if returned.tail_call => {
            Some("(tail call)".into())
        }
        _ => None,
    }
}

fn fault_text(fault: &Fault) -> String {
    let mut text = match vector_name(fault.vector) {
        "" => format!("vector {}", fault.vector),
        name => name.to_owned(),
    };
    if let Some(code) = fault.error_code {
        text += &format!(" error {code:#x}");
    }
    if let Some(address) = fault.address {
        text += &format!(" at {address:#x}");
    }
    text
}

/// Returns an exception's mnemonic (Intel SDM volume 3, table 6-1); empty if it has none.
pub(crate) fn vector_name(vector: u32) -> &'static str {
    const NAMES: [&str; 22] = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS",
        "#GP", "#PF", "", "#MF", "#AC", "#MC", "#XM", "#VE", "#CP",
    ];
    usize::try_from(vector)
        .ok()
        .and_then(|vector| NAMES.get(vector))
        .unwrap_or(&"")
}

/// Returns the general registers with their names, in the order in which they are shown.
#[must_use]
pub fn named_registers(r: &Registers) -> [(&'static str, u64); 18] {
    [
        ("rip", r.rip),
        ("rsp", r.rsp),
        ("rflags", r.rflags),
        ("rax", r.rax),
        ("rbx", r.rbx),
        ("rcx", r.rcx),
        ("rdx", r.rdx),
        ("rsi", r.rsi),
        ("rdi", r.rdi),
        ("rbp", r.rbp),
        ("r8", r.r8),
        ("r9", r.r9),
        ("r10", r.r10),
        ("r11", r.r11),
        ("r12", r.r12),
        ("r13", r.r13),
        ("r14", r.r14),
        ("r15", r.r15),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_no_event_for_is_noted() {
        let mut event = Event::default();
        assert_eq!(note(&event), None);
        event.set_kind(EventKind::Post);
        assert_eq!(note(&event).unwrap(), "(post)");
        event.set_kind(EventKind::Fault);
        assert_eq!(note(&event).unwrap(), "(fault)");
        event.detail = Some(Detail::Fault(Fault {
            vector: 14,
            error_code: Some(2),
            address: Some(0x10),
        }));
        assert_eq!(note(&event).unwrap(), "(fault #PF error 0x2 at 0x10)");
        event.detail = Some(Detail::Fault(Fault {
            vector: u32::MAX,
            ..Fault::default()
        }));
        assert_eq!(note(&event).unwrap(), "(fault vector 4294967295)");
        event.set_kind(EventKind::Return);
        event.detail = Some(Detail::Return(Return {
            tail_call: true,
            ..Return::default()
        }));
        assert_eq!(note(&event).unwrap(), "(tail call)");
    }
}
