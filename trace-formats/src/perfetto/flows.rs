//! Which entry of a function a return belongs to.

use std::collections::{HashMap, HashSet, VecDeque};

use vmprobe_proto::v1::probe::Kind;
use vmprobe_proto::v1::{Event, EventKind, Probe};

use crate::kinds::returned;

/// Entries that wait for their returns, of one task in one function.
const DEPTH: usize = 64;
/// Tasks and functions with waiting entries. More of them have no flows.
const CALLS_MAX: usize = 1 << 16;

/// A function: module and symbol.
type Function = (String, String);

/// Numbers the flows from a function's entry event to the return event of the same call. Both are events of
/// different probes on the function, one at its entry and one at its returns.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Functions with a return probe.
    functions: HashSet<Function>,
    entries: HashMap<(u32, Function), VecDeque<Entry>>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tsc: u64,
    flow: u64,
}

/// What an event is to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Begins(u64),
    Ends(u64),
}

impl Flows {
    /// Learns which functions have return probes.
    pub(super) fn learn(&mut self, probes: &[Probe]) {
        for probe in probes {
            if matches!(probe.kind, Some(Kind::ReturnProbe(_))) {
                self.functions.extend(function(probe));
            }
        }
    }

    /// Returns the flow that the event begins or ends.
    pub(super) fn of(&mut self, probe: &Probe, event: &Event) -> Option<Flow> {
        let pid = event.context.as_ref()?.pid;
        let function = function(probe)?;
        if !self.functions.contains(&function) {
            return None;
        }
        if let Some(returned) = returned(event) {
            let key = (pid, function);
            let entries = self.entries.get_mut(&key)?;
            // The stamps of two probes at the same entry differ by what a probe costs. The right one is the
            // closest; later ones are calls that never returned.
            let distance = |entry: &Entry| entry.tsc.abs_diff(returned.entry_tsc);
            let at = (0..entries.len()).min_by_key(|at| entries.get(*at).map(distance))?;
            let entry = *entries.get(at)?;
            entries.truncate(at);
            if at == 0 {
                self.entries.remove(&key);
            }
            return Some(Flow::Ends(entry.flow));
        }
        let at_entry = matches!(probe.kind, Some(Kind::InstructionProbe(_)) | None)
            && event.kind() == EventKind::Pre;
        if !at_entry || probe.offset > ENTRY_BYTES {
            return None;
        }
        let key = (pid, function);
        if self.entries.len() >= CALLS_MAX && !self.entries.contains_key(&key) {
            return None;
        }
        self.last += 1;
        let entries = self.entries.entry(key).or_default();
        if entries.len() >= DEPTH {
            entries.pop_front();
        }
        entries.push_back(Entry {
            tsc: event.tsc,
            flow: self.last,
        });
        Some(Flow::Begins(self.last))
    }
}

/// A function's entry is its first instruction or the one behind `endbr64` and the ftrace site, 4 and 5 bytes.
const ENTRY_BYTES: u64 = 9;

fn function(probe: &Probe) -> Option<Function> {
    (!probe.symbol.is_empty()).then(|| (probe.module.clone(), probe.symbol.clone()))
}

#[cfg(test)]
mod tests {
    use vmprobe_proto::v1::event::Detail;

    use super::*;
    use crate::samples;

    fn at(event: Event, tsc: u64, entry_tsc: u64) -> Event {
        let mut event = Event { tsc, ..event };
        if let Some(Detail::Return(returned)) = &mut event.detail {
            returned.entry_tsc = entry_tsc;
        }
        event
    }

    #[test]
    fn a_return_ends_the_flow_of_its_own_entry() {
        let probes = samples::probes();
        let [_, done, read] = &probes[..] else {
            panic!()
        };
        let mut flows = Flows::default();
        flows.learn(&probes);
        assert_eq!(
            flows.of(read, &at(samples::read(), 100, 0)),
            Some(Flow::Begins(1))
        );
        assert_eq!(
            flows.of(read, &at(samples::read(), 200, 0)),
            Some(Flow::Begins(2))
        );
        assert_eq!(
            flows.of(read, &at(samples::read(), 300, 0)),
            Some(Flow::Begins(3))
        );
        // The third call never returns; the second one returns into the first.
        assert_eq!(
            flows.of(done, &at(samples::returned(), 400, 202)),
            Some(Flow::Ends(2))
        );
        assert_eq!(
            flows.of(done, &at(samples::returned(), 500, 101)),
            Some(Flow::Ends(1))
        );
        assert_eq!(flows.of(done, &at(samples::returned(), 600, 101)), None);
        assert_eq!(flows.of(&probes[0], &samples::open()), None);
    }

    #[test]
    fn a_guest_that_makes_up_tasks_fills_no_memory() {
        let probes = samples::probes();
        let mut flows = Flows::default();
        flows.learn(&probes);
        let mut event = samples::read();
        for pid in 0..100_000 {
            if let Some(context) = &mut event.context {
                context.pid = pid;
            }
            flows.of(&probes[2], &event);
        }
        assert_eq!(flows.entries.len(), CALLS_MAX);
        for _ in 0..1000 {
            event.context.as_mut().unwrap().pid = 1;
            flows.of(&probes[2], &event);
        }
        assert!(flows.entries.values().all(|entries| entries.len() <= DEPTH));
    }
}
