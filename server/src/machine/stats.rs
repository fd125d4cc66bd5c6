//! The VM's counts and rates, for monitoring.

use probe_engine::probe::{ProbeCounts, ProbeId};
use std::cmp::Reverse;
use vmprobe_proto::v1;

use super::Machine;
use crate::{convert, limits};

impl Machine {
    /// Returns the VM's counts and rates. Stops no vCPU. Blocks.
    pub fn stats(&self, request: &v1::GetVmStatsRequest) -> v1::GetVmStatsResponse {
        // Hits of jumps are counted when their records are read.
        self.drain();
        let vm = self.describe();
        let exits = vm.exits.as_ref().map_or(0, convert::all_exits);
        let counts = self.engine.counts();
        let per_second = self.watched.look(exits, &counts);
        let [hits, missed, ended] = self.watched.sums(&counts);
        let stops = self.vm.recent_stops(request.stops as usize);
        v1::GetVmStatsResponse {
            uptime_ns: convert::ns(self.watched.uptime()),
            exits_per_second: per_second.exits,
            probe_sums: Some(v1::ProbeSums {
                count: counts.len() as u64,
                hits,
                missed,
                ended,
                hits_per_second: per_second.hits,
            }),
            probes: self.probe_stats(chosen(request, &counts, &per_second.of_probes)),
            stop_lengths: self.vm.stops().lengths.into(),
            recent_stops: stops.into_iter().map(convert::recent_stop).collect(),
            streams: Some(convert::streams(&self.events.stats())),
            vm: Some(vm),
        }
    }

    /// Returns the protocol's form of these probes' counts, with their names. Leaves out probes that are gone by now.
    fn probe_stats(&self, chosen: Vec<(ProbeCounts, Option<f64>)>) -> Vec<v1::ProbeStats> {
        let ids: Vec<ProbeId> = chosen.iter().map(|(probe, _)| probe.id).collect();
        let mut infos = self.engine.describe(&ids).into_iter().peekable();
        let known = chosen.into_iter().filter_map(|(probe, rate)| {
            let info = infos.next_if(|info| info.id == probe.id)?;
            Some(v1::ProbeStats {
                id: probe.id.0,
                name: info.name,
                symbol: info.symbol,
                offset: info.offset,
                address: info.address.0,
                hits: probe.hits,
                missed: probe.missed,
                ended: probe.ended,
                hits_per_second: rate,
            })
        });
        known.collect()
    }
}

/// Returns the probes that a request asks for, with their rates.
fn chosen(
    request: &v1::GetVmStatsRequest,
    counts: &[ProbeCounts],
    rates: &[Option<f64>],
) -> Vec<(ProbeCounts, Option<f64>)> {
    let most = request.probes.min(limits::PAGE_MOST) as usize;
    let all = counts.iter().copied().zip(rates.iter().copied());
    if request.order() != v1::ProbeOrder::Rate {
        return all.take(most).collect();
    }
    let mut all: Vec<_> = all.collect();
    all.sort_by(|(one, rate), (other, other_rate)| {
        let by_rate = other_rate.unwrap_or(0.0).total_cmp(&rate.unwrap_or(0.0));
        let key = |probe: &ProbeCounts| (Reverse(probe.hits), probe.id);
        by_rate.then_with(|| key(one).cmp(&key(other)))
    });
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_told_in_the_order_that_is_asked_for_and_no_more_than_that() {
        let hits = [5, 9, 9, 100];
        let counts: Vec<_> = (1..)
            .zip(hits)
            .map(|(id, hits)| ProbeCounts {
                id: ProbeId(id),
                hits,
                missed: 0,
                ended: 0,
            })
            .collect();
        let rates = [Some(2.0), Some(1.0), Some(1.0), None];
        let told = |probes, order: v1::ProbeOrder| {
            let request = v1::GetVmStatsRequest {
                probes,
                order: order.into(),
                ..Default::default()
            };
            let chosen = chosen(&request, &counts, &rates);
            let ids = chosen.into_iter().map(|(probe, _)| probe.id.0);
            ids.collect::<Vec<_>>()
        };
        assert_eq!(told(3, v1::ProbeOrder::Registered), [1, 2, 3]);
        assert_eq!(told(9, v1::ProbeOrder::Unspecified), [1, 2, 3, 4]);
        assert_eq!(told(9, v1::ProbeOrder::Rate), [1, 2, 3, 4]);
        assert_eq!(told(2, v1::ProbeOrder::Rate), [1, 2]);
        assert!(told(0, v1::ProbeOrder::Rate).is_empty());
    }
}
