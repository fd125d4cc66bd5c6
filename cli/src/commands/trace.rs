//! `vmprobe trace`, and the lines of events that `vmprobe run` shares with it.

use vmprobe_client::v1::{Event, Probe};
use vmprobe_client::{Client, ClientError, Message};

use super::session::{interrupted, reach};
use crate::cli::Trace;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::render::{self, Tracer};

pub async fn trace(trace: Trace) -> Result<(), Failure> {
    let (client, vm) = reach(&trace.target).await?;
    let probes = client.list_probes(&vm).await?;
    let chosen = chosen(&probes, &trace.probes)?;
    let mut stream = client.events(&vm, chosen).await?;
    let mut lines = EventLines::new(client, vm, stream.tsc_hz(), trace.json);
    lines.tracer.learn(&probes);

    let mut output = Output::new();
    let mut left = trace.count.unwrap_or(u64::MAX);
    let mut shown: u64 = 0;
    let interrupted = interrupted();
    tokio::pin!(interrupted);
    let end = loop {
        if left == 0 {
            break String::new();
        }
        let message = tokio::select! {
            message = stream.next() => message?,
            _ = &mut interrupted => break String::new(),
        };
        match message {
            Some(Message::Batch { lost, mut events }) => {
                events.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                for line in lines.of_batch(lost, &events).await? {
                    output.line(line)?;
                }
                output.flush()?;
                left -= events.len() as u64;
                shown += events.len() as u64;
            }
            Some(Message::Ended(ending)) => {
                break format!("; the guest ended: {}", render::ending(&ending));
            }
            None => {
                let text = "the stream stopped before the guest's end";
                return Err(ClientError::Disconnected(text.into()).into());
            }
        }
    };
    note(format!("{shown} events, {} lost{end}", stream.lost()));
    Ok(())
}

/// The ids of the probes with these names; none for all probes.
fn chosen(probes: &[Probe], names: &[String]) -> Result<Vec<u64>, Failure> {
    let id = |name: &String| {
        let found = probes.iter().find(|probe| probe.name == *name);
        found
            .map(|probe| probe.id)
            .ok_or_else(|| Failure::NoProbe { name: name.clone() })
    };
    names.iter().map(id).collect()
}

/// Events as lines; asks the server for the names of probes it hasn't met.
pub struct EventLines {
    client: Client,
    vm: String,
    json: bool,
    pub tracer: Tracer,
}

impl EventLines {
    pub fn new(client: Client, vm: String, tsc_hz: u64, json: bool) -> Self {
        Self {
            client,
            vm,
            json,
            tracer: Tracer::new(tsc_hz),
        }
    }

    /// The lines of one batch.
    pub async fn of_batch(&mut self, lost: u64, events: &[Event]) -> Result<Vec<String>, Failure> {
        if events.iter().any(|event| !self.tracer.knows(event)) {
            self.tracer.learn(&self.client.list_probes(&self.vm).await?);
            for event in events {
                // One that was removed meanwhile; ask only once.
                self.tracer.settle(event);
            }
        }
        for event in events {
            if let Some(address) = self.tracer.wants_symbol(event) {
                // What has no name is shown as a number; a lost connection shows in the stream.
                let symbol = match self.client.resolve_address(&self.vm, address).await {
                    Ok((symbol, offset)) => format!("{}+{offset:#x}", symbol.name),
                    Err(_) => format!("{address:#x}"),
                };
                self.tracer.learn_symbol(address, symbol);
            }
        }
        let mut lines = Vec::with_capacity(events.len() + 1);
        if lost > 0 {
            lines.push(if self.json {
                render::lost_json(lost).to_string()
            } else {
                Tracer::lost_line(lost)
            });
        }
        for event in events {
            lines.push(if self.json {
                self.tracer.json(event).to_string()
            } else {
                self.tracer.line(event)
            });
        }
        Ok(lines)
    }
}
