//! The states, counts and endings of VMs.

use std::time::{Duration, UNIX_EPOCH};

use vmprobe_proto::v1;

use crate::fanout::{FanoutStats, QueueStats};

/// A guest's memory if the request gives none, in MiB.
const DEFAULT_MEMORY_MIB: u64 = 512;

/// Returns the MiB of memory that a request asks for.
pub fn memory_mib(request: &v1::CreateVmRequest) -> u64 {
    match request.memory_mib {
        0 => DEFAULT_MEMORY_MIB,
        given => given,
    }
}

/// Returns the protocol's form of the counts of exits.
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

/// Returns the number of exits, for all reasons together.
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

/// Returns a time in nanoseconds.
pub fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the protocol's form of a stop.
pub fn recent_stop(stop: vmm::RecentStop) -> v1::RecentStop {
    let since = stop.end.duration_since(UNIX_EPOCH);
    v1::RecentStop {
        end_unix_ns: since.map_or(0, ns),
        ns: ns(stop.time),
    }
}

/// Returns the protocol's form of the counts of event streams.
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

/// Returns the protocol's form of a sample of a guest's time stamp counter and its host's clock.
pub fn clock(sample: &vmm::ClockSample) -> v1::ClockSample {
    v1::ClockSample {
        tsc: sample.tsc,
        unix_ns: ns(sample.since_epoch),
    }
}

/// Returns the protocol's form of the counts of stops.
pub fn stops(stops: &vmm::Stops) -> v1::Stops {
    v1::Stops {
        count: stops.count,
        ns: ns(stops.time),
        longest_ns: ns(stops.longest),
        alone: stops.alone,
        alone_ns: ns(stops.alone_time),
    }
}

/// Returns the protocol's form of whether there is an arena, or why not. The reason is empty if there is one.
pub fn arena(reason: String) -> v1::Arena {
    v1::Arena {
        available: reason.is_empty(),
        reason,
    }
}

/// Returns the protocol's form of a guest's end.
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
