//! What a job's probes are to see.

use std::time::Duration;

use vmprobe_client::spec;
use vmprobe_client::v1::{Capture, ProbeSpec};

use super::settings::Settings;
use crate::commands::latency;
use crate::tracing::Definition;

/// One expectation of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// As it is shown: the option and what it was given.
    pub name: String,
    /// The probes for it.
    pub definition: Definition,
    pub kind: Kind,
}

/// What is expected of the probes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// At least this many hits.
    AtLeast(u64),
    /// No hit.
    None,
    /// No call that takes longer than this.
    MaxLatency(Duration),
    /// At least this many of the functions are called, in percent.
    Coverage(u32),
}

/// An expectation that isn't understood: the option, what it was given, and why.
pub type Wrong = (&'static str, String, String);

/// Reads all expectations of a job.
///
/// # Errors
/// One isn't understood.
pub fn all(settings: &Settings) -> Result<Vec<Expectation>, Wrong> {
    let mut all = Vec::new();
    for text in &settings.expect {
        all.push(expect(text).map_err(|reason| ("--expect", text.clone(), reason))?);
    }
    for text in &settings.expect_none {
        let counted = counted(text).map_err(|reason| ("--expect-none", text.clone(), reason))?;
        all.push(Expectation {
            name: format!("expect-none `{text}`"),
            definition: counted,
            kind: Kind::None,
        });
    }
    for latency in &settings.max_latency {
        let shown = format!("{} {}", latency.probe, latency.time);
        let wrong = |reason| ("--max-latency", shown.clone(), reason);
        all.push(max_latency(&latency.probe, &latency.time).map_err(wrong)?);
    }
    for text in &settings.coverage {
        all.push(coverage(text).map_err(|reason| ("--coverage", text.clone(), reason))?);
    }
    Ok(all)
}

/// Reads `[N ]PROBE`.
fn expect(text: &str) -> Result<Expectation, String> {
    let (hits, probe) = match text.split_once(char::is_whitespace) {
        Some((number, probe)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            let hits = number
                .parse()
                .map_err(|_| "so many hits can't be counted".to_owned())?;
            (hits, probe.trim_start())
        }
        _ => (1, text),
    };
    Ok(Expectation {
        name: format!("expect `{text}`"),
        definition: counted(probe)?,
        kind: Kind::AtLeast(hits),
    })
}

fn max_latency(probe: &str, time: &str) -> Result<Expectation, String> {
    let limit = humantime::parse_duration(time).map_err(|error| error.to_string())?;
    let text = latency::definition(probe).map_err(|failure| failure.to_string())?;
    Ok(Expectation {
        name: format!("max-latency `{probe}` {time}"),
        definition: defined(&text)?,
        kind: Kind::MaxLatency(limit),
    })
}

/// Reads `PATTERN[=N%]`.
fn coverage(text: &str) -> Result<Expectation, String> {
    let (pattern, percent) = match text.split_once('=') {
        Some((pattern, share)) => {
            let percent = share.strip_suffix('%').and_then(|it| it.parse().ok());
            let percent = percent.filter(|percent| *percent <= 100);
            let reason = "behind the `=` belongs a share, such as 60%";
            (pattern, percent.ok_or_else(|| reason.to_owned())?)
        }
        None => (text, 0),
    };
    Ok(Expectation {
        name: format!("coverage `{text}`"),
        definition: defined(&format!("p {pattern} count"))?,
        kind: Kind::Coverage(percent),
    })
}

fn defined(text: &str) -> Result<Definition, String> {
    let spec = spec::parse(text).map_err(|error| error.to_string())?;
    Ok(Definition {
        spec,
        text: text.to_owned(),
    })
}

/// Makes a probe whose hits are counted. It has no events unless its filter needs them.
fn counted(text: &str) -> Result<Definition, String> {
    let mut definition = defined(text)?;
    let ProbeSpec {
        options,
        arguments,
        filter,
        stack,
        ..
    } = &mut definition.spec;
    if arguments.is_empty() && filter.is_empty() && *stack == 0 {
        let options = options.get_or_insert_default();
        if options.capture() == Capture::Unspecified {
            options.set_capture(Capture::Count);
        }
    }
    Ok(definition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_before_a_probe_says_how_often() {
        let kind = |text| expect(text).map(|it| (it.kind, it.definition.text));
        let of = |hits, text: &str| Ok((Kind::AtLeast(hits), text.to_owned()));
        assert_eq!(kind("p:x vfs_open"), of(1, "p:x vfs_open"));
        assert_eq!(kind("25 p:x vfs_open"), of(25, "p:x vfs_open"));
        assert!(kind("p:x vfs_open+").is_err());
    }

    #[test]
    fn hits_are_counted_without_events_unless_a_filter_needs_arguments() {
        let capture = |text| {
            let spec = counted(text).unwrap().spec;
            spec.options.unwrap_or_default().capture()
        };
        assert_eq!(capture("p vfs_open"), Capture::Count);
        let filtered = "p vfs_open mode=%si if mode == 3";
        assert_eq!(capture(filtered), Capture::Unspecified);
    }

    #[test]
    fn a_coverage_may_have_a_limit() {
        let kind = |text| coverage(text).map(|it| it.kind);
        assert_eq!(kind("ext4_*"), Ok(Kind::Coverage(0)));
        assert_eq!(kind("ext4_*=60%"), Ok(Kind::Coverage(60)));
        for wrong in ["ext4_*=60", "ext4_*=101%", "ext4_*=x%"] {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_latency_is_of_a_function_s_return() {
        let expected = max_latency("vfs_fsync", "5ms").unwrap();
        assert_eq!(expected.kind, Kind::MaxLatency(Duration::from_millis(5)));
        assert!(max_latency("p vfs_fsync", "5ms").is_err());
        assert!(max_latency("vfs_fsync", "5").is_err());
    }
}
