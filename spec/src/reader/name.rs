//! The names of probes, in the forms of the kernel's (`traceprobe_parse_event_name` in
//! `kernel/trace/trace_probe.c`).

use super::cursor::WrongAt;
use crate::limits::NAME_MAX;
use crate::piece::is_identifier;

/// Checks a name that begins at a byte. With a slash it is `GROUP/EVENT` as the kernel has it, or `GROUP/`
/// for a name that the server makes; without one it may have dots and hyphens, too.
pub fn check(name: &str, at: usize) -> Result<(), WrongAt> {
    let wrong =
        |at, len, reason: &str, kernel| Err(WrongAt::new(at, reason).over(len).called(kernel));
    let (event, event_at) = match name.split_once('/') {
        None => (name, at),
        Some((group, event)) => {
            let len = group.len();
            if group.is_empty() {
                return wrong(at, 1, "a group's name belongs before `/`", "NO_GROUP_NAME");
            }
            if len >= NAME_MAX {
                return wrong(
                    at,
                    len,
                    "a group's name has at most 63 bytes",
                    "GROUP_TOO_LONG",
                );
            }
            // `is_good_system_name` in `kernel/trace/trace.h`.
            if group.starts_with('-') || !is_identifier(&group.replace('-', "_")) {
                let reason =
                    "a group's name has letters, digits, _ and - only, and begins with a letter";
                return wrong(at, len, reason, "BAD_GROUP_NAME");
            }
            let event_at = at + len + 1;
            if !event.is_empty() && event.len() <= NAME_MAX && !is_identifier(event) {
                let reason =
                    "a name behind `/` has letters, digits and _ only, and begins with no digit";
                return wrong(event_at, event.len(), reason, "BAD_EVENT_NAME");
            }
            (event, event_at)
        }
    };
    if event.len() > NAME_MAX {
        return wrong(
            event_at,
            event.len(),
            "a name has at most 64 bytes",
            "EVENT_TOO_LONG",
        );
    }
    Ok(())
}
