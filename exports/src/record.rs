//! An event with its time and place.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use vmprobe_trace_formats as formats;

/// RFC 3339 to the nanosecond, always of the same length.
const RFC_3339: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:9]Z");

/// An event of a fleet. Its JSON is that of the lines of `vmprobe trace --hosts --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Nanoseconds since 1970 by the clock of the VM's host; RFC 3339 in JSON.
    #[serde(rename = "time", serialize_with = "rfc_3339")]
    pub unix_ns: u64,
    /// The name of the VM's host.
    pub host: Arc<str>,
    /// The name of the VM.
    pub vm: Arc<str>,
    /// The event's content.
    #[serde(flatten)]
    pub event: formats::Record,
}

impl Record {
    /// Returns the time of the event, in UTC.
    #[must_use]
    pub fn time(&self) -> OffsetDateTime {
        // All numbers are valid times: the last is in the year 2554.
        OffsetDateTime::from_unix_timestamp_nanos(self.unix_ns.into())
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

fn rfc_3339<S: Serializer>(unix_ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    let time = OffsetDateTime::from_unix_timestamp_nanos((*unix_ns).into())
        .map_err(serde::ser::Error::custom)?;
    let text = time.format(RFC_3339).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}

#[cfg(test)]
mod tests {
    use crate::samples;

    #[test]
    fn json_begins_with_time_host_and_vm_and_goes_on_as_that_of_one_vm() {
        let record = samples::returned();
        let text = serde_json::to_string(&record).unwrap();
        let event = serde_json::to_string(&record.event).unwrap();
        let expected = format!(
            "{{\"time\":\"2026-11-27T13:17:41.023320114Z\",\"host\":\"kvm1\",\"vm\":\"web-1\",{}",
            &event[1..]
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn every_number_of_nanoseconds_is_a_moment() {
        for (unix_ns, year) in [(0, 1970), (u64::MAX, 2554)] {
            assert_eq!(samples::of("a", "b", unix_ns).time().year(), year);
        }
    }
}
