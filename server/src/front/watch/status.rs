//! The present state of the VMs as JSON, for the page and for people.

use serde::Serialize;
use vmprobe_proto::v1;

use super::Watch;
use super::look::{SeenVm, Wanted};
use super::metrics::STATES;
use super::usage::Usage;
use crate::access::Caller;
use crate::convert;

/// How many VMs are listed, those with the most hits per second first.
const VMS: usize = 500;
/// How many probes of the chosen VM are listed, those with the most hits per second first.
const PROBES: u32 = 100;
/// How many of its last stops are listed.
const STOPS: u32 = 512;
/// The most characters of a text that a guest or a client has chosen.
const TEXT: usize = 200;

/// The whole document.
#[derive(Debug, Serialize)]
pub struct Status {
    server: ServerStatus,
    vms: Vec<VmStatus>,
    /// VMs that are not in `vms`.
    more_vms: usize,
    /// The VM that was asked for, if there is one of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<Details>,
}

#[derive(Debug, Serialize)]
struct ServerStatus {
    version: &'static str,
    uptime_seconds: f64,
    memory_bytes: Option<u64>,
}

/// A VM. Values that its process hasn't told are missing.
#[derive(Debug, Serialize)]
struct VmStatus {
    name: String,
    /// Whether its process answers.
    up: bool,
    state: &'static str,
    /// How the guest has ended.
    ending: Option<String>,
    uptime_seconds: Option<f64>,
    vcpus: u32,
    memory_mib: u64,
    kernel_version: String,
    exits: u64,
    exits_per_second: Option<f64>,
    probes: Option<u64>,
    hits: Option<u64>,
    hits_per_second: Option<f64>,
    missed_calls: Option<u64>,
    stops: u64,
    stopped_seconds: f64,
    longest_stop_seconds: f64,
    event_streams: Option<usize>,
    events_queued: Option<u64>,
    events_lost: Option<u64>,
    process_memory_bytes: Option<u64>,
}

/// Details of one VM.
#[derive(Debug, Serialize)]
struct Details {
    name: String,
    probes: Vec<ProbeStatus>,
    /// Probes that are not in `probes`.
    more_probes: u64,
    /// The last stops, the oldest first.
    stops: Vec<StopStatus>,
}

#[derive(Debug, Serialize)]
struct ProbeStatus {
    id: u64,
    name: String,
    place: String,
    hits: u64,
    missed_calls: u64,
    hits_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct StopStatus {
    /// When the stop ended, in milliseconds since 1970 began (UTC).
    end_ms: f64,
    seconds: f64,
}

impl Watch {
    /// Returns the state of a caller's VMs, with details of the one of this name.
    pub(super) async fn status(&self, caller: &Caller, chosen: Option<&str>) -> Status {
        let wanted = |name: &str| match chosen == Some(name) {
            true => Wanted {
                probes: PROBES,
                order: v1::ProbeOrder::Rate,
                stops: STOPS,
            },
            false => Wanted::NONE,
        };
        let seen = self.look(caller, wanted).await;
        let vm = seen.iter().find(|seen| chosen == Some(&seen.vm.name));
        let vm = vm.map(details);
        let (vms, more_vms) = busiest(seen.iter().map(vm_status).collect(), VMS);
        Status {
            server: ServerStatus {
                version: env!("CARGO_PKG_VERSION"),
                uptime_seconds: self.started.elapsed().as_secs_f64(),
                memory_bytes: Usage::of_this().map(|usage| usage.resident_bytes),
            },
            vms,
            more_vms,
            vm,
        }
    }
}

/// Returns the VMs with the most hits per second, and how many others there are.
fn busiest(mut vms: Vec<VmStatus>, most: usize) -> (Vec<VmStatus>, usize) {
    let rate = |vm: &VmStatus| vm.hits_per_second.unwrap_or(-1.0);
    // VMs with the same rate stay in the order of their names.
    vms.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    let more = vms.len().saturating_sub(most);
    vms.truncate(most);
    (vms, more)
}

fn vm_status(seen: &SeenVm) -> VmStatus {
    let SeenVm { vm, stats, usage } = seen;
    let stats = stats.as_ref();
    let sums = stats.and_then(|stats| stats.probe_sums);
    let streams = stats.and_then(|stats| stats.streams.as_ref());
    let stops = vm.stops.unwrap_or_default();
    let state = STATES.iter().find(|(state, _)| *state == vm.state());
    let ending = vm.ending.as_ref().map(|ending| {
        let kind = ending.kind().as_str_name();
        let kind = kind.trim_start_matches("ENDING_KIND_").to_lowercase();
        let kind = kind.replace('_', " ");
        match ending.detail.as_str() {
            "" => kind,
            detail => format!("{kind}: {}", short(detail)),
        }
    });
    VmStatus {
        name: vm.name.clone(),
        up: stats.is_some(),
        state: state.map_or("unknown", |(_, name)| name),
        ending,
        uptime_seconds: stats.map(|stats| seconds(stats.uptime_ns)),
        vcpus: vm.vcpus,
        memory_mib: vm.memory_mib,
        kernel_version: short(&vm.kernel_version),
        exits: vm.exits.as_ref().map_or(0, convert::all_exits),
        exits_per_second: stats.and_then(|stats| stats.exits_per_second),
        probes: sums.map(|sums| sums.count),
        hits: sums.map(|sums| sums.hits),
        hits_per_second: sums.and_then(|sums| sums.hits_per_second),
        missed_calls: sums.map(|sums| sums.missed),
        stops: stops.count,
        stopped_seconds: seconds(stops.ns),
        longest_stop_seconds: seconds(stops.longest_ns),
        event_streams: streams.map(|streams| streams.streams.len()),
        events_queued: streams.map(|it| it.streams.iter().map(|stream| stream.queued).sum()),
        events_lost: streams.map(|streams| streams.lost),
        process_memory_bytes: usage.map(|usage| usage.resident_bytes),
    }
}

fn details(seen: &SeenVm) -> Details {
    let stats = seen.stats.clone().unwrap_or_default();
    let all = stats.probe_sums.unwrap_or_default().count;
    let probe = |probe: v1::ProbeStats| ProbeStatus {
        id: probe.id,
        name: short(&probe.name),
        place: match (probe.symbol.as_str(), probe.offset) {
            ("", _) => format!("{:#x}", probe.address),
            (symbol, 0) => short(symbol),
            (symbol, offset) => format!("{}+{offset:#x}", short(symbol)),
        },
        hits: probe.hits,
        missed_calls: probe.missed,
        hits_per_second: probe.hits_per_second,
    };
    let stop = |stop: v1::RecentStop| StopStatus {
        end_ms: stop.end_unix_ns as f64 / 1e6,
        seconds: seconds(stop.ns),
    };
    Details {
        name: seen.vm.name.clone(),
        more_probes: all.saturating_sub(stats.probes.len() as u64),
        probes: stats.probes.into_iter().map(probe).collect(),
        stops: stats.recent_stops.into_iter().map(stop).collect(),
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Cuts a text to a readable length.
fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, rate: Option<f64>) -> SeenVm {
        let stats = rate.map(|rate| v1::GetVmStatsResponse {
            probe_sums: Some(v1::ProbeSums {
                count: 10_000,
                hits: 5,
                hits_per_second: Some(rate),
                ..Default::default()
            }),
            probes: vec![v1::ProbeStats {
                id: 1,
                name: "<img src=x>".into(),
                symbol: "vfs_read".into(),
                offset: 4,
                ..Default::default()
            }],
            recent_stops: vec![v1::RecentStop {
                end_unix_ns: 2_000_000_000_000,
                ns: 1_000,
            }],
            ..Default::default()
        });
        SeenVm {
            vm: v1::Vm {
                name: name.into(),
                state: v1::VmState::Running.into(),
                ending: Some(v1::Ending {
                    kind: v1::EndingKind::TripleFault.into(),
                    detail: "ä".repeat(TEXT + 1),
                    ..Default::default()
                }),
                ..Default::default()
            },
            stats,
            usage: None,
        }
    }

    #[test]
    fn the_busiest_vms_come_first_and_those_that_are_left_out_are_counted() {
        let vms = [
            ("a", None),
            ("b", Some(1.0)),
            ("c", Some(9.0)),
            ("d", Some(1.0)),
        ];
        let vms = vms.map(|(name, rate)| vm_status(&seen(name, rate)));
        let (shown, more) = busiest(vms.into(), 3);
        let names: Vec<_> = shown.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!((names, more), (vec!["c", "b", "d"], 1));
    }

    #[test]
    fn what_a_process_does_not_tell_is_missing_and_long_texts_are_cut() {
        let status = vm_status(&seen("a", None));
        assert!(!status.up && status.hits.is_none() && status.uptime_seconds.is_none());
        let ending = status.ending.unwrap();
        assert!(ending.starts_with("triple fault: ää") && ending.ends_with("ä…"));
        let details = details(&seen("a", Some(1.0)));
        assert_eq!(details.more_probes, 9_999);
        assert_eq!(details.probes[0].place, "vfs_read+0x4");
        assert_eq!(details.stops[0].end_ms, 2_000_000.0);
    }
}
