//! Events of many servers, each line with its time, its host and its VM.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use tokio::time::{Instant, sleep_until, timeout};
use vmprobe_client::fleet::{Fleet, FleetMessage, FleetOptions, FleetVm, Host};
use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Guest, Writer};

use super::definitions::Wanted;
use super::names::EventNames;
use super::register::name_all;
use crate::cli::UntilArgs;
use crate::commands::session::Signals;
use crate::failure::Failure;
use crate::output::note;
use crate::render;

/// How long a server may take to tell names: its events are told without them then.
const NAMES: Duration = Duration::from_secs(1);
/// How long servers keep probes and events of this command when it is cut off.
const LINGER: Duration = Duration::from_secs(60);

/// What is traced on all servers, and how its lines look.
pub struct FleetTrace {
    pub hosts: Vec<Host>,
    pub wanted: Wanted,
    /// A pattern of the VMs' names.
    pub vms: String,
    pub window: Duration,
    pub until: UntilArgs,
    pub json: bool,
}

/// Writes the events of all servers to `out`, in the order of their times, until the user or the limits stop it.
///
/// # Errors
/// Nothing is to be traced, or `out` can't be written.
pub async fn follow_fleet<W: Writer>(
    trace: FleetTrace,
    out: &mut dyn Write,
    make: impl Fn(LineBuffer, &Guest) -> io::Result<W>,
) -> Result<(), Failure> {
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
        json: trace.json,
        events: 0,
        lost: 0,
    };
    let most = trace.until.count.unwrap_or(u64::MAX);
    while told.events < most {
        let message = tokio::select! {
            biased;
            _ = signals.next() => break,
            () = &mut over => break,
            message = fleet.next() => message,
            // What there is so far is shown before more is waited for.
            () = std::future::ready(()) => {
                out.flush().map_err(Failure::Output)?;
                tokio::select! {
                    message = fleet.next() => message,
                    () = &mut over => break,
                    _ = signals.next() => break,
                }
            }
        };
        let Some(message) = message else { break };
        told.tell(message, out, &make)
            .await
            .map_err(Failure::Output)?;
    }
    out.flush().map_err(Failure::Output)?;
    let late = fleet.late();
    fleet.close().await;
    note(format!(
        "{} events, {} lost, {late} out of order",
        told.events, told.lost
    ));
    Ok(())
}

/// What a VM's writer writes to.
#[derive(Clone, Debug, Default)]
pub struct LineBuffer(Arc<Mutex<Vec<u8>>>);

impl LineBuffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for LineBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is known of a VM whose events are told.
struct ToldVm<W> {
    names: EventNames,
    lines: LineBuffer,
    writer: W,
}

struct Told<W> {
    vms: HashMap<(Arc<str>, String), ToldVm<W>>,
    json: bool,
    events: u64,
    lost: u64,
}

impl<W: Writer> Told<W> {
    async fn tell(
        &mut self,
        message: FleetMessage,
        out: &mut dyn Write,
        make: impl Fn(LineBuffer, &Guest) -> io::Result<W>,
    ) -> io::Result<()> {
        match message {
            FleetMessage::Joined(vm) => {
                note(format!("{}: {} probes", of(&vm), vm.probes.len()));
                let known = ToldVm::new(&vm, make)?;
                self.vms.insert(key(&vm), known);
            }
            FleetMessage::Event { vm, unix_ns, event } => {
                let Some(known) = self.vms.get_mut(&key(&vm)) else {
                    return Ok(());
                };
                let text = known.lines(&event).await?;
                let time = UNIX_EPOCH + Duration::from_nanos(unix_ns);
                let time = humantime::format_rfc3339_nanos(time);
                for line in text.split_inclusive(|byte| *byte == b'\n') {
                    match (self.json, line) {
                        (true, [b'{', rest @ ..]) => {
                            let (host, name) = (json(&vm.host), json(&vm.name));
                            write!(out, "{{\"time\":\"{time}\",\"host\":{host},\"vm\":{name},")?;
                            out.write_all(rest)?;
                        }
                        _ => {
                            write!(out, "{time} {}", of(&vm))?;
                            out.write_all(line)?;
                        }
                    }
                }
                self.events += 1;
            }
            FleetMessage::Lost { vm, count } => {
                self.lost += count;
                if self.json {
                    let (host, name) = (json(&vm.host), json(&vm.name));
                    writeln!(out, "{{\"host\":{host},\"vm\":{name},\"lost\":{count}}}")?;
                } else {
                    note(format!("{}: {count} events lost", of(&vm)));
                }
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

impl<W: Writer> ToldVm<W> {
    fn new(vm: &FleetVm, make: impl Fn(LineBuffer, &Guest) -> io::Result<W>) -> io::Result<Self> {
        let mut names = EventNames::new(vm.client.clone(), vm.name.clone(), vm.tsc_hz, vm.vcpus);
        names.learn(&vm.probes);
        let lines = LineBuffer::default();
        let mut writer = make(lines.clone(), names.guest())?;
        writer.begin(&vm.probes)?;
        Ok(Self {
            names,
            lines,
            writer,
        })
    }

    /// An event's lines.
    async fn lines(&mut self, event: &Event) -> io::Result<Vec<u8>> {
        let prepared = timeout(NAMES, self.names.prepare(std::slice::from_ref(event))).await;
        let new: Vec<Probe> = match prepared {
            Ok(Ok(new)) => new,
            // Its server is away, or slow: addresses have no names then.
            _ => Vec::new(),
        };
        if !new.is_empty() {
            self.writer.begin(&new)?;
        }
        self.writer.event(event)?;
        self.writer.flush()?;
        Ok(self.lines.take())
    }
}

fn key(vm: &FleetVm) -> (Arc<str>, String) {
    (Arc::clone(&vm.host), vm.name.clone())
}

fn of(vm: &FleetVm) -> String {
    format!("{}/{}", vm.host, vm.name)
}

fn json(text: &str) -> serde_json::Value {
    text.into()
}
