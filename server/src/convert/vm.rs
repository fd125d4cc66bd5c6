//! What VMs do and how they end.

use std::time::{Duration, UNIX_EPOCH};

use vmprobe_proto::v1;

use crate::fanout::{FanoutStats, QueueStats};

/// Memory of a guest for which the request gives none, in MiB.
const DEFAULT_MEMORY_MIB: u64 = 512;

/// MiB of memory that a request asks for.
pub fn memory_mib(request: &v1::CreateVmRequest) -> u64 {
    match request.memory_mib {
        0 => DEFAULT_MEMORY_MIB,
        given => given,
    }
}

/// The protocol's form of how often vCPUs left guest mode.
pub fn exits(counts: &vmm::ExitCounts) -> v1::Exits {
    v1::Exits {
        breakpoint: counts.breakpoint,
        step: counts.step,
        hardware: counts.hardware,
        port_io: counts.port_io,
        mmio: counts.mmio,
        interrupted: counts.interrupted,
        other: counts.other,
    }
}

/// How often vCPUs left guest mode, for whatever reason.
pub fn all_exits(exits: &v1::Exits) -> u64 {
    let v1::Exits {
        breakpoint,
        step,
        hardware,
        port_io,
        mmio,
        interrupted,
        other,
    } = exits;
    breakpoint + step + hardware + port_io + mmio + interrupted + other
}

/// Nanoseconds.
pub fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The protocol's form of a stop.
pub fn recent_stop(stop: vmm::RecentStop) -> v1::RecentStop {
    let since = stop.end.duration_since(UNIX_EPOCH);
    v1::RecentStop {
        end_unix_ns: since.map_or(0, ns),
        ns: ns(stop.time),
    }
}

/// The protocol's form of what streams of events come to.
pub fn streams(stats: &FanoutStats) -> v1::EventStreams {
    let stream = |queue: &QueueStats| v1::EventStream {
        queued: queue.queued as u64,
        capacity: queue.capacity as u64,
        delivered: queue.delivered,
        lost: queue.lost,
    };
    v1::EventStreams {
        streams: stats.queues.iter().map(stream).collect(),
        delivered: stats.delivered,
        lost: stats.lost,
    }
}

/// The protocol's form of a guest's counter beside its host's clock.
pub fn clock(sample: &vmm::ClockSample) -> v1::ClockSample {
    v1::ClockSample {
        tsc: sample.tsc,
        unix_ns: ns(sample.since_epoch),
    }
}

/// The protocol's form of how often the vCPUs were stopped.
pub fn stops(stops: &vmm::Stops) -> v1::Stops {
    v1::Stops {
        count: stops.count,
        ns: ns(stops.time),
        longest_ns: ns(stops.longest),
        alone: stops.alone,
        alone_ns: ns(stops.alone_time),
    }
}

/// The protocol's form of whether there is an arena, or why not; the reason is empty where there is one.
pub fn arena(reason: String) -> v1::Arena {
    v1::Arena {
        available: reason.is_empty(),
        reason,
    }
}

/// The protocol's form of a guest's end.
pub fn ending(ending: &vmm::Ending) -> v1::Ending {
    use vmm::Ending as E;
    let (kind, detail) = match ending {
        E::PowerOff => (v1::EndingKind::PowerOff, ""),
        E::Reset => (v1::EndingKind::Reset, ""),
        E::Panic { reason } => (v1::EndingKind::Panic, reason.as_str()),
        E::TripleFault => (v1::EndingKind::TripleFault, ""),
        E::Killed => (v1::EndingKind::Killed, ""),
        E::Failed { reason } => (v1::EndingKind::Failed, reason.as_str()),
    };
    v1::Ending {
        kind: kind.into(),
        exit_code: ending.exit_code().into(),
        detail: detail.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_keeps_its_kind_code_and_reason() {
        let end = ending(&vmm::Ending::Panic {
            reason: "no init".into(),
        });
        assert_eq!(
            (end.kind(), end.detail.as_str()),
            (v1::EndingKind::Panic, "no init")
        );
        assert_ne!(end.exit_code, 0);
        assert_eq!(ending(&vmm::Ending::PowerOff).exit_code, 0);
    }

    #[test]
    fn exits_are_told_by_their_reasons() {
        let counts = vmm::ExitCounts {
            breakpoint: 1,
            step: 2,
            hardware: 3,
            port_io: 4,
            mmio: 5,
            interrupted: 6,
            other: 7,
        };
        let told = exits(&counts);
        assert_eq!((told.breakpoint, told.step, told.hardware), (1, 2, 3));
        assert_eq!((told.port_io, told.mmio), (4, 5));
        assert_eq!((told.interrupted, told.other), (6, 7));
        assert_eq!(all_exits(&told), 28);
    }
}
