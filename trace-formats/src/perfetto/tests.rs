use prost::Message;

use super::*;
use crate::samples;

#[derive(Clone, PartialEq, prost::Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

fn trace(events: &[Event]) -> Vec<TracePacket> {
    let mut out = Vec::new();
    let mut writer = Perfetto::new(&mut out, &samples::guest());
    writer.begin(&samples::probes()).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.lost(5).unwrap();
    writer.finish().unwrap();
    drop(writer);
    Trace::decode(&*out).unwrap().packet
}

fn events(packets: &[TracePacket]) -> Vec<(u64, &TrackEvent)> {
    packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::TrackEvent(event)) => Some((packet.timestamp.unwrap(), event)),
            _ => None,
        })
        .collect()
}

fn descriptors(packets: &[TracePacket]) -> Vec<&TrackDescriptor> {
    packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::TrackDescriptor(descriptor)) => Some(descriptor),
            _ => None,
        })
        .collect()
}

#[test]
fn tracks_are_described_once_and_before_their_events() {
    let packets = trace(&[samples::open(), samples::read(), samples::returned()]);
    let names: Vec<String> = descriptors(&packets)
        .iter()
        .map(|track| match (&track.process, &track.thread) {
            (Some(process), _) => format!("{} {}", process.process_name(), process.pid()),
            (_, Some(thread)) => {
                assert_eq!(track.parent_uuid, Some(track::process(1230)));
                format!("{} {}/{}", thread.thread_name(), thread.pid(), thread.tid())
            }
            _ => track.name().to_owned(),
        })
        .collect();
    assert_eq!(
        names,
        [
            "CPUs",
            "CPU 1",
            "cat 1230",
            "cat 1230/1234",
            "CPU 0",
            "lost events"
        ]
    );
    let mut described = Vec::new();
    for packet in &packets {
        match packet.data.as_ref().unwrap() {
            Data::TrackDescriptor(track) => described.push(track.uuid),
            Data::TrackEvent(event) => assert!(described.contains(&event.track_uuid)),
        }
    }
    assert!(
        packets
            .iter()
            .all(|packet| packet.trusted_packet_sequence_id == Some(1))
    );
    let first: Vec<bool> = packets
        .iter()
        .map(|packet| packet.sequence_flags == Some(1))
        .collect();
    assert!(first[0] && first[1..].iter().all(|first| !first));
}

#[test]
fn a_hit_is_an_instant_and_a_return_a_slice_from_the_entry_on() {
    let packets = trace(&[samples::open(), samples::read(), samples::returned()]);
    let (cat, cpu0, cpu1) = (track::thread(1234), track::cpu(0), track::cpu(1));
    let found: Vec<_> = events(&packets)
        .into_iter()
        .map(|(time, event)| (time, event.r#type(), event.track_uuid(), event.name()))
        .collect();
    use TrackEventType::{Instant, SliceBegin, SliceEnd};
    assert_eq!(
        found,
        [
            (123_456_789_999, Instant, cpu1, "open"),
            (123_456_789_999, Instant, cat, "open"),
            (123_456_799_001, Instant, cpu0, "read"),
            (123_456_799_001, Instant, cat, "read"),
            (123_456_801_999, Instant, cpu1, "done"),
            (123_456_798_999, SliceBegin, cat, "done"),
            (123_456_801_999, SliceEnd, cat, ""),
            (123_456_801_999, Instant, track::LOST, "5 events lost"),
        ]
    );
}

#[test]
fn a_flow_leads_from_the_entry_event_to_the_return_event() {
    let packets = trace(&[samples::open(), samples::read(), samples::returned()]);
    let flows: Vec<_> = events(&packets)
        .into_iter()
        .filter(|(_, event)| !event.flow_ids.is_empty() || !event.terminating_flow_ids.is_empty())
        .map(|(_, event)| {
            (
                event.name(),
                event.flow_ids.clone(),
                event.terminating_flow_ids.clone(),
            )
        })
        .collect();
    assert_eq!(
        flows,
        [("read", vec![1], vec![]), ("done", vec![], vec![1])]
    );
}

#[test]
fn arguments_place_and_stack_are_annotations() {
    let packets = trace(&[samples::with_stack()]);
    let events = events(&packets);
    let (_, event) = events[1];
    let string = |text: &str| Some(Annotated::String(text.into()));
    let found: Vec<_> = event
        .debug_annotations
        .iter()
        .map(|annotation| (annotation.name(), annotation.value.clone()))
        .collect();
    assert_eq!(
        found,
        [
            ("dfd", Some(Annotated::Pointer(0xffff_ff9c))),
            ("name", string("/etc/passwd")),
            ("place", string("do_sys_openat2+0x0/0x90")),
            ("stack", None),
            ("cpu", Some(Annotated::Uint(1))),
        ]
    );
    let stack = &event.debug_annotations[3].array_values;
    assert_eq!(stack[1].value, string("ksys_read+0x6a/0xe0"));
    let frames = &event.callstack.as_ref().unwrap().frames;
    assert_eq!(frames[0].function_name(), "0x00401000");
    assert_eq!(frames[2].function_name(), "do_sys_openat2");
}

#[test]
fn idle_tasks_have_a_track_for_each_cpu() {
    let mut event = samples::open();
    if let Some(context) = &mut event.context {
        (context.pid, context.tgid) = (0, 0);
        context.comm = b"swapper/1".into();
    }
    let packets = trace(&[event]);
    let names: Vec<&str> = descriptors(&packets)
        .iter()
        .map(|track| track.name())
        .collect();
    assert_eq!(names, ["CPUs", "CPU 1", "swapper/1", "lost events"]);
}

#[test]
fn a_task_that_changes_its_name_is_described_again() {
    let mut event = samples::open();
    event.context.as_mut().unwrap().comm = b"sh".into();
    let packets = trace(&[event, samples::open(), samples::open()]);
    let names: Vec<&str> = descriptors(&packets)
        .iter()
        .filter_map(|track| track.thread.as_ref().map(ThreadDescriptor::thread_name))
        .collect();
    assert_eq!(names, ["sh", "cat"]);
}

#[test]
fn a_guest_that_makes_up_tasks_and_cpus_fills_no_memory() {
    let mut writer = Perfetto::new(io::sink(), &samples::guest());
    let mut event = samples::open();
    event.values.clear();
    for number in 0..70_000 {
        event.vcpu = number;
        event.context.as_mut().unwrap().pid = number;
        event.context.as_mut().unwrap().tgid = number;
        writer.event(&event).unwrap();
    }
    assert!(writer.tracks.len() <= TRACKS_MAX);
    assert_eq!(writer.cpus.len(), TRACKS_MAX);
}
