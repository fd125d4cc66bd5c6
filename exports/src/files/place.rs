//! The folders of events.

use std::fmt::Write;
use std::path::PathBuf;

use crate::Record;

/// Returns the folder of an event: `host=H/date=YYYY-MM-DD/hour=H`, in UTC, in the form of Hive's partitions. An hour
/// has no leading zero, as DuckDB takes such values for text.
pub fn place(record: &Record) -> PathBuf {
    let time = record.time();
    let folder = format!(
        "host={}/date={}/hour={}",
        escaped(&record.host),
        time.date(),
        time.hour()
    );
    folder.into()
}

/// Returns a value as part of a folder's name. All but ASCII letters, digits and `-_.` becomes `%XX`, which readers
/// undo. An empty value becomes Hive's name for a missing value (`HIVE_DEFAULT_PARTITION`).
fn escaped(value: &str) -> String {
    if value.is_empty() {
        return "__HIVE_DEFAULT_PARTITION__".into();
    }
    let mut out = String::new();
    for byte in value.bytes() {
        match byte {
            b'-' | b'_' | b'.' => out.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            // Writing to a string succeeds.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_folder_has_events_of_one_hour_of_one_host() {
        for (unix_ns, expected) in [
            (0, "host=kvm1/date=1970-01-01/hour=0"),
            (
                1_795_785_461_023_320_114,
                "host=kvm1/date=2026-11-27/hour=13",
            ),
            (u64::MAX, "host=kvm1/date=2554-07-21/hour=23"),
        ] {
            let record = samples::of("kvm1", "web", unix_ns);
            assert_eq!(place(&record), PathBuf::from(expected));
        }
    }

    #[test]
    fn no_host_leads_elsewhere() {
        for (host, expected) in [
            ("kvm1.example.org", "kvm1.example.org"),
            ("../../etc", "..%2F..%2Fetc"),
            ("https://a:7070", "https%3A%2F%2Fa%3A7070"),
            ("a=b%", "a%3Db%25"),
            ("ü\0", "%C3%BC%00"),
            ("", "__HIVE_DEFAULT_PARTITION__"),
        ] {
            assert_eq!(escaped(host), expected);
        }
    }
}
