//! The subjects of events.

use crate::Record;

/// The first token of all subjects.
pub const PREFIX: &str = "vmprobe";

/// Bytes of a token. Servers take control lines of 4096 bytes (`max_control_line`).
const LONGEST: usize = 255;

/// Returns the subject of an event: `vmprobe.HOST.VM.PROBE`.
pub fn subject(record: &Record) -> String {
    let [host, vm, probe] = [&*record.host, &*record.vm, &*record.event.probe].map(token);
    format!("{PREFIX}.{host}.{vm}.{probe}")
}

/// Returns a name as a token. Characters with a meaning for NATS become `_`: `.`, `*`, `>`, white space and control
/// characters.
fn token(name: &str) -> String {
    let means_something =
        |c: char| matches!(c, '.' | '*' | '>') || c.is_whitespace() || c.is_control();
    let mut token = name.replace(means_something, "_");
    token.truncate(token.floor_char_boundary(LONGEST));
    if token.is_empty() {
        token.push('_');
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_subject_has_a_token_each_for_host_vm_and_probe() {
        let mut record = samples::of("kvm1.example.org", "web 1", 0);
        record.event.probe = "fs/open".into();
        assert_eq!(subject(&record), "vmprobe.kvm1_example_org.web_1.fs/open");
    }

    #[test]
    fn no_name_makes_a_wildcard_an_empty_token_or_a_line_that_is_too_long() {
        for (name, expected) in [
            ("", "_"),
            ("*", "_"),
            (">", "_"),
            ("a.b.>", "a_b__"),
            ("a\r\nPUB x 1", "a__PUB_x_1"),
            ("\u{a0}", "_"),
            ("vfs_read+0x5", "vfs_read+0x5"),
            ("Grüße", "Grüße"),
        ] {
            assert_eq!(token(name), expected, "{name:?}");
        }
        assert_eq!(token(&"ü".repeat(200)), "ü".repeat(127));
    }
}
