//! Perfetto's traces.

mod flows;
mod schema;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use prost::Message;
use vmprobe_proto::v1::{Argument, Context, Event, Probe, Value};

use self::flows::{Flow, Flows};
use self::schema::{
    Annotated, Callstack, Data, DebugAnnotation, Frame, ProcessDescriptor,
    SEQ_INCREMENTAL_STATE_CLEARED, ThreadDescriptor, TracePacket, TrackDescriptor, TrackEvent,
    TrackEventType,
};
use crate::clock::Clock;
use crate::kinds::{note, returned};
use crate::names::Names;
use crate::text::printable;
use crate::values::{self, Meaning, meaning};
use crate::writer::{Guest, Writer};

/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// Tasks and CPUs that have a track. Events of more are on the tracks of those CPUs that have one, or on that
/// of all other CPUs.
const TRACKS_MAX: usize = 1 << 16;
/// The key of `Trace.packet`, field 1 of a length-delimited kind.
const PACKET_KEY: u8 = 0x0a;

/// Writes a Perfetto trace, which <https://ui.perfetto.dev> opens.
///
/// Each CPU has a track on which all its events are instants, of the category `cpu`. Each task has a track
/// within its process. There, returns are slices from the function's entry on, and all else are instants, of
/// the category of the probe's group. So each event of a known task is there twice, once in each category.
/// The idle tasks, which all have the number 0, have a track for each CPU. A flow leads from a function's entry
/// event to the return event of the same call where both were probed; both are on tracks of CPUs.
///
/// Arguments are annotations, as are `place`, `stack` and `note`, the latter as in [`Ftrace`](crate::Ftrace).
/// Without any known clock, ticks stand for nanoseconds. At most 65536 tasks and CPUs have tracks.
pub struct Perfetto<W> {
    out: W,
    names: Names,
    clock: Clock,
    flows: Flows,
    /// The name of each thread's track, and of each process, by track.
    tracks: HashMap<u64, String>,
    cpus: HashSet<u32>,
    begun: bool,
    /// When the last event was.
    now: u64,
    packet: Vec<u8>,
}

/// Numbers of tracks: the kind of the track is above bit 32, its number among those of that kind below.
mod track {
    pub(super) const CPUS: u64 = 1 << 32;
    pub(super) const OTHER_CPUS: u64 = 2 << 32;
    pub(super) const LOST: u64 = 3 << 32;

    pub(super) fn cpu(cpu: u32) -> u64 {
        4 << 32 | u64::from(cpu)
    }
    pub(super) fn idle(cpu: u32) -> u64 {
        5 << 32 | u64::from(cpu)
    }
    pub(super) fn process(tgid: u32) -> u64 {
        6 << 32 | u64::from(tgid)
    }
    pub(super) fn thread(pid: u32) -> u64 {
        7 << 32 | u64::from(pid)
    }
}

impl<W: Write> Perfetto<W> {
    /// Makes a writer to `out`. Each event is written at once.
    pub fn new(out: W, guest: &Guest) -> Self {
        Self {
            out,
            names: Names::new(guest),
            clock: Clock::new(guest.tsc_hz),
            flows: Flows::default(),
            tracks: HashMap::new(),
            cpus: HashSet::new(),
            begun: false,
            now: 0,
            packet: Vec::new(),
        }
    }

    fn write(&mut self, timestamp: Option<u64>, data: Data) -> io::Result<()> {
        let first = !std::mem::replace(&mut self.begun, true);
        let packet = TracePacket {
            timestamp,
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: first.then_some(SEQ_INCREMENTAL_STATE_CLEARED),
            first_packet_on_sequence: first.then_some(true),
            data: Some(data),
        };
        self.packet.clear();
        self.packet.push(PACKET_KEY);
        packet
            .encode_length_delimited(&mut self.packet)
            .map_err(io::Error::other)?;
        self.out.write_all(&self.packet)
    }

    fn describe(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.write(None, Data::TrackDescriptor(descriptor))
    }

    /// Returns the track of all events of a CPU.
    fn cpu_track(&mut self, cpu: u32) -> io::Result<u64> {
        if self.cpus.contains(&cpu) {
            return Ok(track::cpu(cpu));
        }
        if self.cpus.is_empty() {
            self.describe(named(track::CPUS, None, "CPUs"))?;
        }
        if self.cpus.len() == TRACKS_MAX {
            return Ok(track::OTHER_CPUS);
        }
        self.cpus.insert(cpu);
        if self.cpus.len() == TRACKS_MAX {
            self.describe(named(track::OTHER_CPUS, Some(track::CPUS), "other CPUs"))?;
        }
        let name = format!("CPU {cpu}");
        self.describe(named(track::cpu(cpu), Some(track::CPUS), &name))?;
        Ok(track::cpu(cpu))
    }

    /// Returns the track of a task, if there is room for it.
    fn task_track(&mut self, cpu: u32, context: &Context) -> io::Result<Option<u64>> {
        let name = printable(&context.comm);
        if context.pid == 0 {
            let uuid = track::idle(cpu);
            if self.knows(uuid, &name) {
                return Ok(Some(uuid));
            }
            if self.tracks.len() >= TRACKS_MAX {
                return Ok(None);
            }
            self.describe(named(uuid, Some(track::CPUS), &format!("swapper/{cpu}")))?;
            self.tracks.insert(uuid, name);
            return Ok(Some(uuid));
        }
        let tgid = if context.tgid == 0 {
            context.pid
        } else {
            context.tgid
        };
        let (process, thread) = (track::process(tgid), track::thread(context.pid));
        if self.knows(thread, &name) {
            return Ok(Some(thread));
        }
        if self.tracks.len() + 1 >= TRACKS_MAX && !self.tracks.contains_key(&thread) {
            return Ok(None);
        }
        // The process is called what its first thread is called; another thread's name will do until then.
        if context.pid == tgid || !self.tracks.contains_key(&process) {
            self.describe(TrackDescriptor {
                uuid: Some(process),
                process: Some(ProcessDescriptor {
                    pid: Some(tgid.cast_signed()),
                    process_name: Some(name.clone()),
                }),
                ..TrackDescriptor::default()
            })?;
            self.tracks.insert(process, name.clone());
        }
        self.describe(TrackDescriptor {
            uuid: Some(thread),
            parent_uuid: Some(process),
            thread: Some(ThreadDescriptor {
                pid: Some(tgid.cast_signed()),
                tid: Some(context.pid.cast_signed()),
                thread_name: Some(name.clone()),
            }),
            ..TrackDescriptor::default()
        })?;
        self.tracks.insert(thread, name);
        Ok(Some(thread))
    }

    /// Returns true if a track is described and has this name: a task may change it by `execve`.
    fn knows(&self, uuid: u64, name: &str) -> bool {
        self.tracks.get(&uuid).is_some_and(|known| known == name)
    }

    fn annotations(&self, event: &Event) -> Vec<DebugAnnotation> {
        let values = event.values.iter().enumerate();
        let mut annotations: Vec<_> = values
            .map(|(at, value)| {
                let argument = self.names.argument(event, at);
                annotation(&values::name(argument, at), argument, value, values::DEPTH)
            })
            .collect();
        annotations.push(text("place", self.names.places(event)));
        annotations.extend(note(event).map(|note| text("note", note)));
        if !event.stack.is_empty() {
            let frames = event.stack.iter();
            annotations.push(DebugAnnotation {
                name: Some("stack".into()),
                array_values: frames
                    .map(|address| DebugAnnotation {
                        name: None,
                        ..text("", self.names.place(*address))
                    })
                    .collect(),
                ..DebugAnnotation::default()
            });
        }
        annotations
    }

    fn callstack(&self, event: &Event) -> Option<Callstack> {
        let frames = event.stack.iter().rev().map(|address| Frame {
            function_name: Some(self.names.function(*address)),
        });
        (!event.stack.is_empty()).then(|| Callstack {
            frames: frames.collect(),
        })
    }
}

impl<W: Write> Writer for Perfetto<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.names.learn(probes);
        self.flows.learn(probes);
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let time = self.clock.time(event);
        self.now = time.number();
        let (group, name) = self.names.event_name(event);
        let annotations = self.annotations(event);
        let cpu = self.cpu_track(event.vcpu)?;
        let mut on_cpu = TrackEvent {
            r#type: Some(TrackEventType::Instant.into()),
            track_uuid: Some(cpu),
            categories: vec!["cpu".into()],
            name: Some(name.clone()),
            debug_annotations: annotations.clone(),
            ..TrackEvent::default()
        };
        if let Some(context) = &event.context {
            let task = format!("{}-{}", printable(&context.comm), context.pid);
            on_cpu.debug_annotations.push(text("task", task));
        }
        let probe = self.names.probe(event);
        match probe.and_then(|probe| self.flows.of(probe, event)) {
            Some(Flow::Begins(flow)) => on_cpu.flow_ids.push(flow),
            Some(Flow::Ends(flow)) => on_cpu.terminating_flow_ids.push(flow),
            None => {}
        }
        self.write(Some(self.now), Data::TrackEvent(on_cpu))?;

        let Some(context) = &event.context else {
            return Ok(());
        };
        let Some(task) = self.task_track(event.vcpu, context)? else {
            return Ok(());
        };
        let mut on_task = TrackEvent {
            r#type: Some(TrackEventType::Instant.into()),
            track_uuid: Some(task),
            categories: vec![group],
            name: Some(name),
            debug_annotations: annotations,
            callstack: self.callstack(event),
            ..TrackEvent::default()
        };
        on_task.debug_annotations.push(DebugAnnotation {
            name: Some("cpu".into()),
            value: Some(Annotated::Uint(event.vcpu.into())),
            ..DebugAnnotation::default()
        });
        let Some(returned) = returned(event) else {
            return self.write(Some(self.now), Data::TrackEvent(on_task));
        };
        let entry = self.clock.earlier(returned.entry_tsc, event.tsc, time);
        on_task.r#type = Some(TrackEventType::SliceBegin.into());
        self.write(Some(entry), Data::TrackEvent(on_task))?;
        let end = TrackEvent {
            r#type: Some(TrackEventType::SliceEnd.into()),
            track_uuid: Some(task),
            ..TrackEvent::default()
        };
        self.write(Some(self.now), Data::TrackEvent(end))
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        if !self.tracks.contains_key(&track::LOST) {
            self.describe(named(track::LOST, None, "lost events"))?;
            self.tracks.insert(track::LOST, String::new());
        }
        let event = TrackEvent {
            r#type: Some(TrackEventType::Instant.into()),
            track_uuid: Some(track::LOST),
            categories: vec!["lost".into()],
            name: Some(format!("{count} events lost")),
            debug_annotations: vec![DebugAnnotation {
                name: Some("lost".into()),
                value: Some(Annotated::Uint(count)),
                ..DebugAnnotation::default()
            }],
            ..TrackEvent::default()
        };
        self.write(Some(self.now), Data::TrackEvent(event))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn named(uuid: u64, parent: Option<u64>, name: &str) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        parent_uuid: parent,
        name: Some(name.into()),
        ..TrackDescriptor::default()
    }
}

fn text(name: &str, text: String) -> DebugAnnotation {
    DebugAnnotation {
        name: Some(name.into()),
        value: Some(Annotated::String(text)),
        ..DebugAnnotation::default()
    }
}

fn annotation(
    name: &str,
    argument: Option<&Argument>,
    value: &Value,
    depth: usize,
) -> DebugAnnotation {
    let mut annotation = DebugAnnotation {
        name: (!name.is_empty()).then(|| name.into()),
        ..DebugAnnotation::default()
    };
    annotation.value = match meaning(argument, value) {
        Meaning::Unsigned(number) => Some(Annotated::Uint(number)),
        Meaning::Signed(number) => Some(Annotated::Int(number)),
        Meaning::Hex(number) => Some(Annotated::Pointer(number)),
        Meaning::Char(byte) => {
            let mut text = String::new();
            values::push_char(&mut text, byte);
            Some(Annotated::String(text))
        }
        Meaning::String(bytes) | Meaning::Text(bytes) => Some(Annotated::String(printable(bytes))),
        Meaning::List(values) if depth > 0 && !values.is_empty() => {
            let values = values.iter();
            annotation.array_values = values
                .map(|value| self::annotation("", argument, value, depth - 1))
                .collect();
            None
        }
        Meaning::List(_) | Meaning::Fault | Meaning::Missing => {
            let mut text = String::new();
            values::push_value(&mut text, argument, value);
            Some(Annotated::String(text))
        }
    };
    annotation
}

#[cfg(test)]
mod read_back;
#[cfg(test)]
mod tests;
