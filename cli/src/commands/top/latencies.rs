//! The average time of the calls that return probes report.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use vmprobe_client::v1::event::Detail;
use vmprobe_client::v1::probe::Kind;
use vmprobe_client::v1::{Capture, Event, Probe, ProbeOptions};
use vmprobe_client::{Client, EventStream, Message};

/// Nanoseconds and calls of each probe.
type Sums = HashMap<u64, (u128, u64)>;

/// Follows the events of return probes in the background.
pub struct Latencies {
    client: Client,
    vm: String,
    watched: Vec<u64>,
    follower: Option<JoinHandle<()>>,
    sums: Arc<Mutex<Sums>>,
}

impl Latencies {
    pub fn new(client: Client, vm: String) -> Self {
        Self {
            client,
            vm,
            watched: Vec::new(),
            follower: None,
            sums: Arc::default(),
        }
    }

    /// Follows those of these probes that report returns, in place of the probes before. Probes that can't be followed
    /// have no latency.
    pub async fn watch(&mut self, probes: &[Probe]) {
        let returns = probes.iter().filter(|probe| tells_returns(probe));
        let ids: Vec<u64> = returns.map(|probe| probe.id).collect();
        if ids == self.watched {
            return;
        }
        self.stop();
        self.watched.clone_from(&ids);
        if ids.is_empty() {
            return;
        }
        if let Ok(stream) = self.client.events(&self.vm, ids).await {
            let sums = Arc::clone(&self.sums);
            self.follower = Some(tokio::spawn(follow(stream, sums)));
        }
    }

    /// Returns the average of each probe's calls since the last time, in nanoseconds.
    pub fn take(&self) -> HashMap<u64, u64> {
        let sums = std::mem::take(&mut *self.sums.lock().unwrap_or_else(PoisonError::into_inner));
        let average = |(id, (sum, count)): (u64, (u128, u64))| {
            let average = sum.checked_div(u128::from(count))?;
            Some((id, u64::try_from(average).unwrap_or(u64::MAX)))
        };
        sums.into_iter().filter_map(average).collect()
    }

    fn stop(&mut self) {
        if let Some(follower) = self.follower.take() {
            follower.abort();
        }
    }
}

impl Drop for Latencies {
    fn drop(&mut self) {
        self.stop();
    }
}

fn tells_returns(probe: &Probe) -> bool {
    let capture = probe.options.as_ref().map(ProbeOptions::capture);
    matches!(probe.kind, Some(Kind::ReturnProbe(_))) && capture != Some(Capture::Count)
}

async fn follow(mut stream: EventStream, sums: Arc<Mutex<Sums>>) {
    let tsc_hz = stream.tsc_hz();
    while let Ok(Some(Message::Batch { events, .. })) = stream.next().await {
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        for event in &events {
            add(&mut sums, event, tsc_hz);
        }
    }
}

fn add(sums: &mut Sums, event: &Event, tsc_hz: u64) {
    if let Some(Detail::Return(returned)) = &event.detail
        && !returned.tail_call
    {
        let ticks = u128::from(event.tsc.saturating_sub(returned.entry_tsc));
        if let Some(ns) = (ticks * 1_000_000_000).checked_div(u128::from(tsc_hz)) {
            let (sum, count) = sums.entry(event.probe_id).or_default();
            *sum = sum.saturating_add(ns);
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_client::v1::Return;

    use super::*;

    #[test]
    fn only_returns_with_a_clock_count() {
        let mut sums = Sums::new();
        let mut event = Event {
            probe_id: 7,
            tsc: 5000,
            detail: Some(Detail::Return(Return {
                entry_tsc: 1000,
                ..Default::default()
            })),
            ..Default::default()
        };
        add(&mut sums, &event, 0);
        assert!(sums.is_empty());
        add(&mut sums, &event, 2_000_000_000);
        event.tsc = 3000;
        add(&mut sums, &event, 2_000_000_000);
        event.detail = None;
        add(&mut sums, &event, 2_000_000_000);
        assert_eq!(sums, HashMap::from([(7, (3000, 2))]));
    }
}
