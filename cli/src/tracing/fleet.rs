//! Events of many servers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use vmprobe_client::fleet::{Fleet, FleetMessage, FleetOptions, FleetVm, Host};
use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::Guest;

use super::definitions::Wanted;
use super::names::EventNames;
use super::register::name_all;
use crate::cli::UntilArgs;
use crate::commands::session::Signals;
use crate::failure::Failure;
use crate::output::note;
use crate::render;

/// How long a server may take to tell names. After that its events are told without them.
const NAMES: Duration = Duration::from_secs(1);
/// How long servers keep probes and events of this command when it is cut off.
const LINGER: Duration = Duration::from_secs(60);

/// What is traced on all servers.
pub struct FleetTrace {
    pub hosts: Vec<Host>,
    pub wanted: Wanted,
    /// A pattern of the VMs' names.
    pub vms: String,
    pub window: Duration,
    pub until: UntilArgs,
}

/// Takes the events of a trace.
pub trait FleetEvents {
    /// What is kept for each VM.
    type Vm;

    /// Begins a VM whose events will come.
    fn joins(&mut self, vm: &FleetVm, guest: &Guest) -> Result<Self::Vm, Failure>;

    /// Learns probes of the VM, before their first events.
    fn learn(&mut self, known: &mut Self::Vm, probes: &[Probe]) -> Result<(), Failure>;

    /// Takes an event, and its moment in nanoseconds since 1970.
    async fn event(
        &mut self,
        vm: &FleetVm,
        known: &mut Self::Vm,
        unix_ns: u64,
        event: &Event,
    ) -> Result<(), Failure>;

    /// Notes that `count` events of a VM were lost.
    fn lost(&mut self, vm: &FleetVm, count: u64) -> Result<(), Failure>;

    /// Called when there are no more events at the moment.
    fn pause(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Hands the events of all servers to `events`, in the order of their times, until the user or the limits stop it.
///
/// # Errors
/// Nothing is to be traced, or `events` can't go on.
pub async fn follow_fleet(trace: FleetTrace, events: &mut impl FleetEvents) -> Result<(), Failure> {
    let mut signals = Signals::listen();
    let mut definitions = trace.wanted.definitions;
    if let Some(name) = trace.wanted.names.first() {
        return Err(Failure::NoDefinition { name: name.clone() });
    }
    if definitions.is_empty() {
        return Err(Failure::NothingToTrace);
    }
    name_all(&mut definitions, []);
    let options = FleetOptions {
        probes: definitions
            .into_iter()
            .map(|definition| definition.spec)
            .collect(),
        vms: trace.vms,
        window: trace.window,
        linger: LINGER,
    };
    let mut fleet = Fleet::follow(trace.hosts, options);
    let over = async {
        match trace.until.seconds {
            Some(time) => sleep_until(Instant::now() + time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(over);
    let mut told = Told {
        vms: HashMap::new(),
        to: events,
        events: 0,
        lost: 0,
    };
    let most = trace.until.count.unwrap_or(u64::MAX);
    let followed = loop {
        if told.events >= most {
            break Ok(());
        }
        let message = tokio::select! {
            biased;
            _ = signals.next() => break Ok(()),
            () = &mut over => break Ok(()),
            message = fleet.next() => message,
            // The events so far are shown before the loop waits for more.
            () = std::future::ready(()) => {
                if let Err(failure) = told.to.pause() {
                    break Err(failure);
                }
                tokio::select! {
                    message = fleet.next() => message,
                    () = &mut over => break Ok(()),
                    _ = signals.next() => break Ok(()),
                }
            }
        };
        let Some(message) = message else {
            break Ok(());
        };
        // `events` may be slow, or wait for other programs.
        let heard = tokio::select! {
            heard = told.tell(message) => heard,
            () = &mut over => break Ok(()),
            _ = signals.next() => break Ok(()),
        };
        if let Err(failure) = heard {
            break Err(failure);
        }
    };
    let (told, lost, late) = (told.events, told.lost, fleet.late());
    fleet.close().await;
    let followed = followed.and_then(|()| events.pause());
    // If the output's pipe is closed, no reader needs the totals.
    if !matches!(followed, Err(Failure::Output(_))) {
        note(format!("{told} events, {lost} lost, {late} out of order"));
    }
    followed
}

/// What is known of a VM whose events are told.
struct ToldVm<V> {
    names: EventNames,
    known: V,
}

struct Told<'a, E: FleetEvents> {
    vms: HashMap<(Arc<str>, String), ToldVm<E::Vm>>,
    to: &'a mut E,
    events: u64,
    lost: u64,
}

impl<E: FleetEvents> Told<'_, E> {
    async fn tell(&mut self, message: FleetMessage) -> Result<(), Failure> {
        match message {
            FleetMessage::Joined(vm) => {
                note(format!("{}: {} probes", of(&vm), vm.probes.len()));
                let (client, name) = (vm.client.clone(), vm.name.clone());
                let mut names = EventNames::new(client, name, vm.tsc_hz, vm.vcpus);
                names.learn(&vm.probes);
                let mut known = self.to.joins(&vm, names.guest())?;
                self.to.learn(&mut known, &vm.probes)?;
                self.vms.insert(key(&vm), ToldVm { names, known });
            }
            FleetMessage::Event { vm, unix_ns, event } => {
                let Some(ToldVm { names, known }) = self.vms.get_mut(&key(&vm)) else {
                    return Ok(());
                };
                let prepared = timeout(NAMES, names.prepare(std::slice::from_ref(&event))).await;
                // The server is away, or slow: addresses have no names then.
                let new = prepared.ok().and_then(Result::ok).unwrap_or_default();
                if !new.is_empty() {
                    self.to.learn(known, &new)?;
                }
                self.events += 1;
                self.to.event(&vm, known, unix_ns, &event).await?;
            }
            FleetMessage::Lost { vm, count } => {
                self.lost += count;
                self.to.lost(&vm, count)?;
            }
            FleetMessage::Gap { vm, reason } => {
                note(format!("{}: events may be missing: {reason}", of(&vm)));
            }
            FleetMessage::Ended { vm, ending } => {
                note(format!(
                    "{}: the guest ended: {}",
                    of(&vm),
                    render::ending(&ending)
                ));
            }
            FleetMessage::Refused { host, vm, reason } => note(format!("{host}/{vm}: {reason}")),
            FleetMessage::Away { host, reason } => note(format!("{host} is away: {reason}")),
            FleetMessage::Back { host } => note(format!("{host} is back")),
        }
        Ok(())
    }
}

fn key(vm: &FleetVm) -> (Arc<str>, String) {
    (Arc::clone(&vm.host), vm.name.clone())
}

/// Returns the name of a VM in messages.
pub fn of(vm: &FleetVm) -> String {
    format!("{}/{}", vm.host, vm.name)
}
