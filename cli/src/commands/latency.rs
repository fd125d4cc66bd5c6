//! `vmprobe latency`: how long functions take.

use std::collections::BTreeMap;
use std::io;

use serde_json::json;
use vmprobe_client::spec;
use vmprobe_client::v1::event::Detail;
use vmprobe_client::v1::probe_spec::Kind;
use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Guest, Histogram, Writer};

use crate::cli::Latency;
use crate::failure::Failure;
use crate::output::print;
use crate::tracing::{Wanted, follow};

pub async fn latency(latency: &Latency) -> Result<(), Failure> {
    let texts: Result<Vec<String>, Failure> = latency
        .functions
        .iter()
        .map(|function| definition(function))
        .collect();
    let wanted = Wanted::defined(&texts?, latency.filter.as_deref())?;
    let make = |guest: &Guest| match guest.tsc_hz {
        0 => Err(Failure::NoFrequency),
        tsc_hz => Ok(Latencies::new(tsc_hz)),
    };
    let until = &latency.until;
    let (found, totals) =
        follow(&latency.target, &wanted, until, true, make, Failure::Output).await?;
    match latency.format.is_json() {
        true => print(found.json())?,
        false => print(found.lines())?,
    }
    totals.tell();
    Ok(())
}

/// Makes the return probe of a function. Its events need no registers.
pub fn definition(text: &str) -> Result<String, Failure> {
    let spec = spec::parse(text)?;
    match &spec.kind {
        Some(Kind::Return(_)) => Ok(text.to_owned()),
        _ if text.trim() == text && !text.contains(|c: char| c.is_whitespace() || c == '=') => {
            Ok(format!("r {text} regs=none"))
        }
        _ => Err(Failure::NoReturn {
            definition: text.to_owned(),
        }),
    }
}

/// Returns how long the call took whose return an event tells of, in nanoseconds. None of another event, and of a tail
/// call, which goes on elsewhere.
pub fn call_ns(event: &Event, tsc_hz: u64) -> Option<u64> {
    let Some(Detail::Return(returned)) = &event.detail else {
        return None;
    };
    let ticks = event.tsc.saturating_sub(returned.entry_tsc);
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(tsc_hz.max(1));
    (!returned.tail_call).then(|| u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Durations of each probe's calls.
struct Latencies {
    tsc_hz: u64,
    probes: BTreeMap<u64, (String, Histogram)>,
}

impl Latencies {
    fn new(tsc_hz: u64) -> Self {
        Self {
            tsc_hz,
            probes: BTreeMap::new(),
        }
    }

    /// Returns the functions with their histograms; of many, those that were called.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let all = self.probes.values();
        let some_called = all.clone().any(|(_, histogram)| histogram.count() > 0);
        for (name, histogram) in all {
            if some_called && self.probes.len() > 1 && histogram.count() == 0 {
                continue;
            }
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.push(format!("{name}:"));
            lines.extend(histogram.to_string().lines().map(str::to_owned));
        }
        lines
    }

    /// Returns all functions, each with what its histogram has. A range includes `from_ns` and not `to_ns`; bounds are
    /// strings, as the last one has more bits than readers of JSON keep.
    fn json(&self) -> Vec<String> {
        let value = |(name, histogram): &(String, Histogram)| {
            let ranges = histogram.ranges().map(|range| {
                json!({
                    "from_ns": range.from.to_string(),
                    "to_ns": range.to.to_string(),
                    "count": range.count,
                })
            });
            json!({
                "function": name,
                "calls": histogram.count(),
                "shortest_ns": histogram.shortest(),
                "average_ns": histogram.average(),
                "longest_ns": histogram.longest(),
                "ranges": ranges.collect::<Vec<_>>(),
            })
        };
        let values = self.probes.values().map(value);
        values.map(|value| value.to_string()).collect()
    }
}

impl Writer for Latencies {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        for probe in probes {
            let name = match &*probe.symbol {
                "" => &probe.name,
                symbol => symbol,
            };
            self.probes
                .entry(probe.id)
                .or_insert_with(|| (name.to_owned(), Histogram::default()));
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        if let (Some(ns), Some((_, histogram))) = (
            call_ns(event, self.tsc_hz),
            self.probes.get_mut(&event.probe_id),
        ) {
            histogram.add(ns);
        }
        Ok(())
    }

    fn lost(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::Return;

    use super::*;

    #[test]
    fn a_function_becomes_a_return_probe() {
        let of = |text: &str| definition(text).ok();
        assert_eq!(of("vfs_read").unwrap(), "r vfs_read regs=none");
        assert_eq!(of("tcp_*").unwrap(), "r tcp_* regs=none");
        assert_eq!(of("r64:a vfs_read").unwrap(), "r64:a vfs_read");
        assert_eq!(of("vfs_read%return").unwrap(), "vfs_read%return");
        assert_eq!(of("p vfs_read"), None);
        assert_eq!(of("a=vfs_read"), None);
    }

    #[test]
    fn functions_that_were_not_called_are_left_out_of_many() {
        let mut latencies = Latencies::new(2_000_000_000);
        let probe = |id, symbol: &str| Probe {
            id,
            symbol: symbol.into(),
            ..Default::default()
        };
        latencies.begin(&[probe(1, "a"), probe(2, "b")]).unwrap();
        assert_eq!(latencies.lines(), ["a:", "no calls", "", "b:", "no calls"]);
        latencies
            .event(&Event {
                probe_id: 2,
                tsc: 3000,
                detail: Some(Detail::Return(Return {
                    entry_tsc: 1000,
                    ..Default::default()
                })),
                ..Default::default()
            })
            .unwrap();
        let lines = latencies.lines();
        assert_eq!(lines[0], "b:");
        let last = "1 call, shortest 1.00 us, average 1.00 us, longest 1.00 us";
        assert_eq!(lines[2], last);
        assert_eq!(lines.len(), 3);
        let values = latencies.json();
        let of_none = r#"{"function":"a","calls":0,"shortest_ns":null,"average_ns":null,"longest_ns":null,"ranges":[]}"#;
        assert_eq!(values[0], of_none);
        let of_one = r#""shortest_ns":1000,"average_ns":1000,"longest_ns":1000,"ranges":[{"from_ns":"512","to_ns":"1024","count":1}]}"#;
        assert!(values[1].ends_with(of_one), "{}", values[1]);
    }
}
