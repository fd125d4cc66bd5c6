//! Following events from the registration of their probes to the totals.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, interval, sleep_until, timeout};
use vmprobe_client::v1::{Event, Probe};
use vmprobe_client::{Client, ClientError, EventStream, Message, Session};
use vmprobe_trace_formats::{Guest, Writer};

use super::definitions::Wanted;
use super::names::EventNames;
use super::progress::{PERIOD, Progress};
use super::register::register;
use crate::cli::{TargetArgs, UntilArgs};
use crate::commands::session::{Signals, reach};
use crate::failure::Failure;
use crate::output::note;
use crate::render;

/// How long the end waits for events of removed probes: from one event to the next, and at most.
const QUIET: Duration = Duration::from_millis(100);
const TAIL: Duration = Duration::from_secs(2);

/// Probes whose counts are told one by one.
const TOTALS_MAX: usize = 20;

/// What a trace came to.
#[derive(Debug, Default)]
pub struct Totals {
    pub events: u64,
    pub lost: u64,
    /// How the guest ended, if it did.
    end: Option<String>,
    /// The probes by name, with their hits during the trace and how many were missed.
    probes: Vec<(String, u64, u64)>,
}

impl Totals {
    /// Tells the user the totals: events and losses first, then the probes.
    pub fn tell(&self) {
        let end = self.end.as_ref();
        let end = end.map_or(String::new(), |end| format!("; the guest ended: {end}"));
        note(format!(
            "{}, {} lost{end}",
            counted(self.events, "event"),
            self.lost
        ));
        let mut probes: Vec<_> = self.probes.iter().collect();
        if probes.len() > TOTALS_MAX {
            // Of many probes, the ones with the most hits are told.
            probes.sort_by_key(|(_, hits, missed)| std::cmp::Reverse((*hits, *missed)));
        }
        for (name, hits, missed) in probes.iter().take(TOTALS_MAX) {
            note(format!(
                "{name}: {}, {missed} missed",
                counted(*hits, "hit")
            ));
        }
        if let Some(more @ 1..) = probes.len().checked_sub(TOTALS_MAX) {
            note(format!("and {more} more probes"));
        }
    }
}

/// Returns a number with the name of the things, which is `thing` for one.
fn counted(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// Writes a batch of events whose new probes and addresses are known.
///
/// # Errors
/// The output can't be written.
pub fn deliver(
    writer: &mut dyn Writer,
    new: &[Probe],
    lost: u64,
    events: &[Event],
) -> io::Result<()> {
    if !new.is_empty() {
        writer.begin(new)?;
    }
    if lost > 0 {
        writer.lost(lost)?;
    }
    for event in events {
        writer.event(event)?;
    }
    writer.flush()
}

/// Registers the probes that are wanted, has a writer made, gives it all events until the user, the limits or the
/// guest's end stop it, and removes the probes again. Returns the finished writer.
///
/// # Errors
/// `failed` makes the failure of an error of the writer. The probes are removed after any error.
pub async fn follow<W: Writer>(
    target: &TargetArgs,
    wanted: &Wanted,
    until: &UntilArgs,
    progress: bool,
    make: impl FnOnce(&Guest) -> Result<W, Failure>,
    failed: impl Fn(io::Error) -> Failure,
) -> Result<(W, Totals), Failure> {
    let mut signals = Signals::listen();
    wanted.tell_of_counting();
    let mut tracing = {
        let opening = Tracing::open(target, wanted);
        tokio::pin!(opening);
        tokio::select! {
            opened = &mut opening => opened?,
            failure = signals.next() => {
                // Probes that are being registered must not stay; a second signal doesn't wait for that.
                tokio::select! {
                    opened = &mut opening => opened?.close().await,
                    _ = signals.next() => {}
                }
                return Err(failure);
            }
        }
    };
    let made = make(tracing.names.guest());
    let result = match made {
        Ok(mut writer) => {
            let progress = Progress::new(progress);
            let ended = tracing
                .run(until, &progress, &mut writer, &failed, &mut signals)
                .await;
            progress.clear();
            ended.map(|end| (writer, end))
        }
        Err(failure) => Err(failure),
    };
    tokio::select! {
        () = tracing.close() => {}
        failure = signals.next() => return Err(failure),
    }
    let (mut writer, end) = result?;
    if matches!(end, End::Asked) {
        tracing.read_tail(&mut writer, &failed).await?;
    }
    writer.finish().map_err(failed)?;
    let end = match end {
        End::Guest(how) => Some(how),
        End::Disconnected(error) => return Err(error.into()),
        End::Asked | End::Count => None,
    };
    Ok((
        writer,
        Totals {
            end,
            ..tracing.totals
        },
    ))
}

/// Why the events ended.
enum End {
    /// The number of events that was wanted has come.
    Count,
    /// The time is over, or the user has pressed Ctrl-C.
    Asked,
    Guest(String),
    Disconnected(ClientError),
}

struct Tracing {
    client: Client,
    vm: String,
    /// The registered probes go with it, however this process ends.
    _session: Session,
    stream: EventStream,
    names: EventNames,
    /// The probes that the writer has to learn first.
    probes: Vec<Probe>,
    /// The ids of the probes that are removed at the end, and of those among them that are enabled at first.
    own: Vec<u64>,
    enable: Vec<u64>,
    totals: Totals,
}

impl Tracing {
    async fn open(target: &TargetArgs, wanted: &Wanted) -> Result<Self, Failure> {
        let (client, vm) = reach(target).await?;
        let cpus = client.get_vm(&vm).await?.vcpus;
        let there = client.list_probes(&vm).await?;
        let mut probes = chosen(&there, &wanted.names)?;
        let session = client.open_session(&vm, Duration::ZERO).await?;
        let registered = register(&client, &vm, &session, &wanted.definitions).await?;
        if registered.probes.is_empty() && !wanted.definitions.is_empty() {
            // A subscription without probes would be one to all probes.
            return Err(ClientError::Protocol("probes").into());
        }
        let own: Vec<u64> = registered.probes.iter().map(|probe| probe.id).collect();
        probes.extend(registered.probes);
        let ids = probes.iter().map(|probe| probe.id).collect();
        // The probes are enabled when the subscription stands, so that no hit goes unseen.
        let stream = client.events(&vm, ids).await?;
        if probes.is_empty() {
            probes = there;
        }
        let mut names = EventNames::new(client.clone(), vm.clone(), stream.tsc_hz(), cpus);
        names.learn(&probes);
        Ok(Self {
            client,
            vm,
            _session: session,
            stream,
            names,
            probes,
            own,
            enable: registered.enable,
            totals: Totals::default(),
        })
    }

    /// Gives the writer events until something ends them.
    async fn run(
        &mut self,
        until: &UntilArgs,
        progress: &Progress,
        writer: &mut dyn Writer,
        failed: impl Fn(io::Error) -> Failure,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        writer.begin(&self.probes).map_err(&failed)?;
        if !self.enable.is_empty() {
            let enable = self.enable.clone();
            self.client
                .enable_probes(&self.vm, enable, Vec::new())
                .await?;
        }
        let deadline = until.seconds.map(|time| Instant::now() + time);
        let over = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        tokio::pin!(over);
        let mut ticks = interval(PERIOD);
        let mut left = until.count.unwrap_or(u64::MAX);
        while left > 0 {
            let message = tokio::select! {
                message = self.stream.next() => message,
                () = &mut over => return Ok(End::Asked),
                _ = signals.next() => return Ok(End::Asked),
                _ = ticks.tick(), if progress.is_shown() => {
                    progress.show(self.totals.events, self.totals.lost);
                    continue;
                }
            };
            match message {
                Ok(Some(Message::Batch { lost, mut events })) => {
                    events.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    left -= events.len() as u64;
                    self.write(lost, &events, writer, &failed).await?;
                }
                // This subscription didn't ask for progress.
                Ok(Some(Message::Progress { .. })) => {}
                Ok(Some(Message::Ended(ending))) => {
                    return Ok(End::Guest(render::ending(&ending)));
                }
                Ok(None) => {
                    let text = "the stream stopped before the guest's end";
                    return Ok(End::Disconnected(ClientError::Disconnected(text.into())));
                }
                Err(error) => return Ok(End::Disconnected(error)),
            }
        }
        Ok(End::Count)
    }

    async fn write(
        &mut self,
        lost: u64,
        events: &[Event],
        writer: &mut dyn Writer,
        failed: impl Fn(io::Error) -> Failure,
    ) -> Result<(), Failure> {
        let new = self.names.prepare(events).await?;
        deliver(writer, &new, lost, events).map_err(failed)?;
        self.probes.extend(new);
        self.totals.events += events.len() as u64;
        self.totals.lost += lost;
        Ok(())
    }

    /// Writes the events that the removed probes saw before their removal and that are still on their way.
    async fn read_tail(
        &mut self,
        writer: &mut dyn Writer,
        failed: impl Fn(io::Error) -> Failure,
    ) -> Result<(), Failure> {
        if self.own.is_empty() {
            return Ok(());
        }
        let end = Instant::now() + TAIL;
        while Instant::now() < end {
            match timeout(QUIET, self.stream.next()).await {
                Ok(Ok(Some(Message::Batch { lost, mut events }))) => {
                    events.retain(|event| self.own.contains(&event.probe_id));
                    self.write(lost, &events, writer, &failed).await?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Removes the probes that were registered, and takes the last counts of all. A guest that has gone
    /// meanwhile tells none.
    async fn close(&mut self) {
        let before = self.probes.iter().map(|probe| (probe.id, probe));
        let before: HashMap<u64, &Probe> = before.collect();
        let mut last = Vec::new();
        if before.len() > self.own.len()
            && let Ok(probes) = self.client.list_probes(&self.vm).await
        {
            let others = probes.into_iter();
            last.extend(others.filter(|probe| !self.own.contains(&probe.id)));
        }
        if !self.own.is_empty() {
            let own = self.own.clone();
            match self
                .client
                .unregister_probes(&self.vm, own, Vec::new())
                .await
            {
                Ok(probes) => last.extend(probes),
                Err(error) => note(format!(
                    "the probes of this trace may still be there: {error}"
                )),
            }
        }
        for probe in last {
            let Some(first) = before.get(&probe.id) else {
                continue;
            };
            let hits = probe.hits.saturating_sub(first.hits);
            let missed = probe.missed.saturating_sub(first.missed);
            if hits > 0 || missed > 0 || self.own.contains(&probe.id) {
                self.totals.probes.push((probe.name, hits, missed));
            }
        }
    }
}

/// Returns the registered probes of these names or ids.
fn chosen(probes: &[Probe], names: &[String]) -> Result<Vec<Probe>, Failure> {
    let mut chosen = Vec::new();
    for name in names {
        let id = name.parse::<u64>();
        let is_meant = |probe: &&Probe| match id {
            Ok(id) => probe.id == id,
            Err(_) => probe.name == *name,
        };
        let before = chosen.len();
        chosen.extend(probes.iter().filter(is_meant).cloned());
        if chosen.len() == before {
            return Err(Failure::NoProbe { name: name.clone() });
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_chosen_by_name_or_id() {
        let probe = |id, name: &str| Probe {
            id,
            name: name.into(),
            ..Default::default()
        };
        let probes = [probe(1, "a"), probe(2, "b"), probe(4, "b")];
        let ids = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = chosen(&probes, &names).ok()?;
            Some(found.iter().map(|probe| probe.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["b", "1"]), Some(vec![2, 4, 1]));
        assert_eq!(ids(&["c"]), None);
        assert_eq!(ids(&["3"]), None);
    }
}
