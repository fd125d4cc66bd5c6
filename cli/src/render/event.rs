//! What an event is, in words.

use vmprobe_client::v1::event::Detail;
use vmprobe_client::v1::{Event, EventKind, Fault};

/// One word for the event's kind.
pub(super) fn kind_name(event: &Event) -> &'static str {
    match (event.kind(), &event.detail) {
        (EventKind::Post, _) => "post",
        (EventKind::Fault, _) | (EventKind::Unspecified, Some(Detail::Fault(_))) => "fault",
        (EventKind::Return, _) | (EventKind::Unspecified, Some(Detail::Return(_))) => "return",
        (EventKind::Access, _) => "access",
        (EventKind::Pre, _) | (EventKind::Unspecified, None) => "pre",
    }
}

/// An exception's mnemonic (Intel SDM volume 3, table 6-1); empty for what has none.
pub(super) fn vector_name(vector: u32) -> &'static str {
    const NAMES: [&str; 22] = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS",
        "#GP", "#PF", "", "#MF", "#AC", "#MC", "#XM", "#VE", "#CP",
    ];
    usize::try_from(vector)
        .ok()
        .and_then(|vector| NAMES.get(vector))
        .unwrap_or(&"")
}

/// Such as `#PF error 0x2 at 0x10`.
pub(super) fn fault_text(fault: &Fault) -> String {
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

/// A returned value in hexadecimal, and in decimal where it reads as one of the kernel's errors: -1
/// to -4095 (`MAX_ERRNO` in `include/linux/err.h`), of 64 bits or, from an `int`, of 32.
pub(super) fn returned_text(value: u64) -> String {
    match errno(value) {
        Some(error) => format!("{value:#x} ({error})"),
        None => format!("{value:#x}"),
    }
}

fn errno(value: u64) -> Option<i64> {
    const ERRORS: std::ops::RangeInclusive<i64> = -4095..=-1;
    let long = value.cast_signed();
    let int = u32::try_from(value)
        .ok()
        .map(|value| i64::from(value.cast_signed()));
    [Some(long), int]
        .into_iter()
        .flatten()
        .find(|error| ERRORS.contains(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_shows_what_the_exception_has() {
        let mut fault = Fault {
            vector: 14,
            error_code: Some(2),
            address: Some(0x10),
        };
        assert_eq!(fault_text(&fault), "#PF error 0x2 at 0x10");
        fault = Fault {
            vector: 0,
            ..Default::default()
        };
        assert_eq!(fault_text(&fault), "#DE");
        fault.vector = 15;
        assert_eq!(fault_text(&fault), "vector 15");
        fault.vector = u32::MAX;
        assert_eq!(fault_text(&fault), "vector 4294967295");
    }

    #[test]
    fn a_returned_error_is_told_in_decimal_too() {
        for (value, text) in [
            (0, "0x0"),
            (1, "0x1"),
            (u64::MAX, "0xffffffffffffffff (-1)"),
            (0xffff_fffe, "0xfffffffe (-2)"),
            (0xffff_ffff_ffff_f001, "0xfffffffffffff001 (-4095)"),
            (0xffff_ffff_ffff_f000, "0xfffffffffffff000"),
            (0xffff_8880_0000_0000, "0xffff888000000000"),
        ] {
            assert_eq!(returned_text(value), text);
        }
    }
}
