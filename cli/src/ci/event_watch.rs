//! What the events of a job's probes tell: how long calls took, and what happened last.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use vmprobe_client::v1::{Event, Probe};
use vmprobe_client::{EventStream, Message};
use vmprobe_trace_formats::{Header, Writer};

use crate::commands::event_file::EventCopy;
use crate::commands::latency::call_ns;
use crate::failure::Failure;
use crate::tracing::{EventNames, TraceLines, deliver};

/// Events that a report shows.
const LAST: usize = 20;

/// The calls of a return probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub count: u64,
    pub longest: Duration,
}

/// What events have told.
#[derive(Debug, Default)]
pub struct Seen {
    /// By the probes' ids.
    pub calls: HashMap<u64, Calls>,
    pub lost: u64,
    last: VecDeque<Event>,
}

impl Seen {
    fn add(&mut self, event: Event, tsc_hz: u64) {
        if let Some(ns) = call_ns(&event, tsc_hz) {
            let calls = self.calls.entry(event.probe_id).or_default();
            calls.count += 1;
            calls.longest = calls.longest.max(Duration::from_nanos(ns));
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }

    /// Returns the last events as lines.
    ///
    /// # Errors
    /// The server has gone.
    pub async fn last_lines(
        &self,
        mut names: EventNames,
        probes: &[Probe],
    ) -> Result<Vec<String>, Failure> {
        let events: Vec<Event> = self.last.iter().cloned().collect();
        names.learn(probes);
        let new = names.prepare(&events).await?;
        let mut text = Vec::new();
        let write = |text: &mut Vec<u8>| {
            let mut lines = TraceLines::new(text, names.guest(), Header::None)?;
            lines.begin(probes)?;
            deliver(&mut lines, &new, 0, &events)?;
            lines.finish()
        };
        write(&mut text).map_err(Failure::Output)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(text
            .lines()
            .map(|line| line.trim_start().to_owned())
            .collect())
    }
}

/// Reads events to the guest's end.
///
/// # Errors
/// The server has gone, or the copy can't be written.
pub async fn watch(mut stream: EventStream, mut copy: Option<EventCopy>) -> Result<Seen, Failure> {
    let tsc_hz = stream.tsc_hz();
    let mut seen = Seen::default();
    while let Some(Message::Batch { lost, events }) = stream.next().await? {
        seen.lost += lost;
        if let Some(copy) = &mut copy {
            copy.write(lost, &events).await?;
        }
        for event in events {
            seen.add(event, tsc_hz);
        }
    }
    if let Some(copy) = &mut copy {
        copy.finish()?;
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::Return;
    use vmprobe_client::v1::event::Detail;

    use super::*;

    fn returned(probe_id: u64, entry_tsc: u64, tsc: u64, tail_call: bool) -> Event {
        Event {
            probe_id,
            tsc,
            detail: Some(Detail::Return(Return {
                entry_tsc,
                tail_call,
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    #[test]
    fn the_longest_call_of_each_probe_is_kept() {
        let mut seen = Seen::default();
        for event in [
            returned(1, 100, 300, false),
            returned(1, 400, 500, false),
            returned(2, 100, 101, false),
            returned(2, 100, 900, true),
        ] {
            seen.add(event, 1_000_000_000);
        }
        let calls = |count, ns| Calls {
            count,
            longest: Duration::from_nanos(ns),
        };
        assert_eq!(seen.calls[&1], calls(2, 200));
        assert_eq!(seen.calls[&2], calls(1, 1));
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let mut seen = Seen::default();
        for tsc in 0..100 {
            seen.add(returned(1, 0, tsc, false), 1);
        }
        assert_eq!(seen.last.len(), LAST);
        assert_eq!(seen.last.back().unwrap().tsc, 99);
    }
}
