//! Metrics of VMs.

use std::fmt;

use vmprobe_proto::v1;

use super::encoder::{Encoder, Labels, Lengths, in_bytes, in_seconds, plain};
use crate::front::watch::look::SeenVm;
use crate::front::watch::usage::Usage;

const NANO: f64 = 1e-9;
const MIB: f64 = (1 << 20) as f64;

/// The states of VMs, with their names in metrics.
pub const STATES: [(v1::VmState, &str); 4] = [
    (v1::VmState::Created, "created"),
    (v1::VmState::Running, "running"),
    (v1::VmState::Paused, "paused"),
    (v1::VmState::Ended, "ended"),
];

pub(super) fn encode(to: &mut Encoder<'_>, vms: &[SeenVm]) -> fmt::Result {
    state(to, vms)?;
    exits_and_stops(to, vms)?;
    probes(to, vms)?;
    events(to, vms)?;
    processes(to, vms)
}

fn label(seen: &SeenVm) -> Labels<'_> {
    vec![("vm", seen.vm.name.as_str())]
}

/// Returns a sample for each VM.
fn each<'a, T>(
    vms: &'a [SeenVm],
    value: impl Fn(&'a v1::Vm) -> T,
) -> impl Iterator<Item = (Labels<'a>, T)> {
    vms.iter().map(move |seen| (label(seen), value(&seen.vm)))
}

/// Returns a sample for each VM whose process has answered with its counts.
fn known<'a, T>(
    vms: &'a [SeenVm],
    value: impl Fn(&'a v1::GetVmStatsResponse) -> T,
) -> impl Iterator<Item = (Labels<'a>, T)> {
    let told = vms
        .iter()
        .filter_map(|seen| Some((seen, seen.stats.as_ref()?)));
    told.map(move |(seen, stats)| (label(seen), value(stats)))
}

fn state(to: &mut Encoder<'_>, vms: &[SeenVm]) -> fmt::Result {
    to.gauge(
        plain("vmprobe_vm_up", "Whether the process of the VM answers"),
        vms.iter()
            .map(|seen| (label(seen), f64::from(seen.stats.is_some()))),
    )?;
    let states = vms.iter().flat_map(|seen| {
        STATES.iter().map(move |(state, name)| {
            let labels = [label(seen), vec![("state", *name)]].concat();
            (labels, f64::from(seen.vm.state() == *state))
        })
    });
    to.gauge(
        plain("vmprobe_vm_state", "Whether the VM is in this state"),
        states,
    )?;
    let kernels = vms.iter().map(|seen| {
        let version = vec![("version", seen.vm.kernel_version.as_str())];
        ([label(seen), version].concat(), 1.0)
    });
    to.gauge(
        plain(
            "vmprobe_vm_kernel_info",
            "The version of the guest's kernel, always 1",
        ),
        kernels,
    )?;
    to.gauge(
        in_seconds(
            "vmprobe_vm_uptime",
            "How long the guest has run, up to its end",
        ),
        known(vms, |stats| stats.uptime_ns as f64 * NANO),
    )?;
    to.gauge(
        plain("vmprobe_vm_vcpus", "vCPUs of the VM"),
        each(vms, |vm| f64::from(vm.vcpus)),
    )?;
    to.gauge(
        in_bytes("vmprobe_vm_memory", "Memory of the guest"),
        each(vms, |vm| vm.memory_mib as f64 * MIB),
    )
}

fn exits_and_stops(to: &mut Encoder<'_>, vms: &[SeenVm]) -> fmt::Result {
    let exits = vms.iter().flat_map(|seen| {
        let exits = seen.vm.exits.unwrap_or_default();
        reasons(&exits).map(|(reason, count)| {
            let labels = [label(seen), vec![("reason", reason)]].concat();
            (labels, count)
        })
    });
    to.counter(
        plain("vmprobe_exits", "Times that vCPUs left guest mode"),
        exits,
    )?;
    to.histogram(
        in_seconds("vmprobe_stop", "How long all vCPUs stood still at a time, for a change of probes or a look at the guest"),
        vms.iter().filter_map(|seen| {
            let stats = seen.stats.as_ref()?;
            let stops = seen.vm.stops.unwrap_or_default();
            Some((label(seen), lengths(stats, stops)))
        }),
    )?;
    let stops = |vm: &v1::Vm| vm.stops.unwrap_or_default();
    to.gauge(
        in_seconds(
            "vmprobe_longest_stop",
            "The longest time that all vCPUs stood still so far",
        ),
        each(vms, |vm| stops(vm).longest_ns as f64 * NANO),
    )?;
    to.counter(
        plain(
            "vmprobe_lone_steps",
            "Times that all vCPUs but one stood still so that this one could step alone",
        ),
        each(vms, |vm| stops(vm).alone),
    )?;
    to.seconds(
        in_seconds(
            "vmprobe_lone_step",
            "How long all vCPUs but one stood still so that this one could step alone, together",
        ),
        each(vms, |vm| stops(vm).alone_ns as f64 * NANO),
    )?;
    let optimizer = |vm: &v1::Vm| vm.optimizer.unwrap_or_default();
    to.counter(
        plain("vmprobe_jumps_made", "Probes that were made jumps"),
        each(vms, |vm| optimizer(vm).probes),
    )?;
    to.seconds(
        in_seconds(
            "vmprobe_jumps_stop",
            "How long all vCPUs stood still to make probes jumps, together",
        ),
        each(vms, |vm| optimizer(vm).stopped_ns as f64 * NANO),
    )
}

fn reasons(exits: &v1::Exits) -> [(&'static str, u64); 7] {
    [
        ("breakpoint", exits.breakpoint),
        ("step", exits.step),
        ("hardware", exits.hardware),
        ("port-io", exits.port_io),
        ("mmio", exits.mmio),
        ("interrupted", exits.interrupted),
        ("other", exits.other),
    ]
}

/// Returns a histogram of the lengths of a VM's stops, in seconds.
fn lengths(stats: &v1::GetVmStatsResponse, stops: v1::Stops) -> Lengths {
    let counts = &stats.stop_lengths;
    let last = counts.len().saturating_sub(1);
    let ends = (0..).map(|range| match range == last {
        true => f64::INFINITY,
        false => 2f64.powi(range as i32) / 1e6,
    });
    Lengths {
        seconds: stops.ns as f64 * NANO,
        count: counts.iter().sum(),
        ranges: ends.zip(counts.iter().copied()).collect(),
    }
}

fn probes(to: &mut Encoder<'_>, vms: &[SeenVm]) -> fmt::Result {
    let sums = |stats: &v1::GetVmStatsResponse| stats.probe_sums.unwrap_or_default();
    to.gauge(
        plain("vmprobe_probes", "Probes of the VM"),
        known(vms, |stats| sums(stats).count as f64),
    )?;
    to.counter(
        plain(
            "vmprobe_hits",
            "Hits of all probes of the VM, removed ones included",
        ),
        known(vms, |stats| sums(stats).hits),
    )?;
    to.counter(
        plain(
            "vmprobe_missed_calls",
            "Calls that return probes did not follow",
        ),
        known(vms, |stats| sums(stats).missed),
    )?;
    let told: Vec<_> = vms
        .iter()
        .filter_map(|seen| Some((seen, seen.stats.as_ref()?)))
        .flat_map(|(seen, stats)| stats.probes.iter().map(move |probe| (seen, probe)))
        .map(|(seen, probe)| (seen, probe, probe.id.to_string()))
        .collect();
    let samples = |of: fn(&v1::ProbeStats) -> u64| {
        told.iter().map(move |(seen, probe, id)| {
            let names = vec![("probe", probe.name.as_str()), ("id", id.as_str())];
            ([label(seen), names].concat(), of(probe))
        })
    };
    to.counter(
        plain(
            "vmprobe_probe_hits",
            "Hits of a probe, of the probes that were registered first (--metrics-probes)",
        ),
        samples(|probe| probe.hits),
    )?;
    to.counter(
        plain(
            "vmprobe_probe_missed_calls",
            "Calls that a return probe did not follow, of the probes that were registered first (--metrics-probes)",
        ),
        samples(|probe| probe.missed),
    )
}

fn events(to: &mut Encoder<'_>, vms: &[SeenVm]) -> fmt::Result {
    let streams = |stats: &v1::GetVmStatsResponse| stats.streams.clone().unwrap_or_default();
    to.gauge(
        plain(
            "vmprobe_event_streams",
            "Streams of events that clients follow",
        ),
        known(vms, |stats| streams(stats).streams.len() as f64),
    )?;
    to.gauge(
        plain(
            "vmprobe_event_queue_length",
            "Events that wait for clients, of all streams together",
        ),
        known(vms, |stats| {
            let queued = streams(stats)
                .streams
                .into_iter()
                .map(|stream| stream.queued);
            queued.sum::<u64>() as f64
        }),
    )?;
    to.gauge(
        plain(
            "vmprobe_event_queue_fill_ratio",
            "How full the fullest queue of a stream is: 1 is full, and loses events",
        ),
        known(vms, |stats| {
            let fill =
                |stream: v1::EventStream| stream.queued as f64 / stream.capacity.max(1) as f64;
            let fills = streams(stats).streams.into_iter().map(fill);
            fills.fold(0.0, f64::max)
        }),
    )?;
    to.counter(
        plain(
            "vmprobe_events_delivered",
            "Events that were handed to streams",
        ),
        known(vms, |stats| streams(stats).delivered),
    )?;
    to.counter(
        plain(
            "vmprobe_events_lost",
            "Events that streams have lost, as their clients read too slowly",
        ),
        known(vms, |stats| streams(stats).lost),
    )?;
    to.counter(
        plain(
            "vmprobe_ring_damage",
            "Times that records of jumps were unreadable, as the guest has written over them",
        ),
        each(vms, |vm| vm.ring_damage),
    )
}

fn processes(to: &mut Encoder<'_>, vms: &[SeenVm]) -> fmt::Result {
    let used = |value: fn(Usage) -> Option<f64>| {
        let used = vms
            .iter()
            .filter_map(|seen| Some((label(seen), seen.usage?)));
        used.filter_map(move |(labels, usage)| Some((labels, value(usage)?)))
    };
    to.seconds(
        in_seconds(
            "vmprobe_vm_process_cpu",
            "CPU time of the VM's process, the guest's included",
        ),
        used(|usage| Some(usage.cpu_seconds)),
    )?;
    to.gauge(
        in_bytes(
            "vmprobe_vm_process_resident_memory",
            "Memory of the VM's process in RAM, the guest's included",
        ),
        used(|usage| Some(usage.resident_bytes as f64)),
    )?;
    to.gauge(
        plain(
            "vmprobe_vm_process_open_fds",
            "Files that the VM's process has open",
        ),
        used(|usage| usage.open_files.map(|open| open as f64)),
    )?;
    to.gauge(
        plain("vmprobe_vm_process_threads", "Threads of the VM's process"),
        used(|usage| Some(usage.threads as f64)),
    )
}
