//! Clients' sessions at a VM, and the probes that go with them.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use probe_engine::probe::ProbeId;
use tonic::{Code, Status};
use vmprobe_proto::v1;

use crate::held::{Held, HeldTable};
use crate::status;

/// All sessions of a VM.
#[derive(Debug)]
pub struct Sessions {
    table: Mutex<Table>,
    /// The most sessions that there may be.
    most: usize,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HeldTable<BTreeSet<ProbeId>>,
    /// The session of each probe that goes with one.
    of_probe: HashMap<ProbeId, String>,
}

impl Sessions {
    /// Makes a table without sessions.
    pub fn new(most: usize) -> Self {
        Self {
            table: Mutex::default(),
            most,
        }
    }

    /// Gives a stream the session of this name, or a new one if the name is empty. Also returns the session's probes.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such session; `RESOURCE_EXHAUSTED` if there are too many.
    pub fn hold(&self, name: &str) -> Result<(Held, Vec<u64>), Status> {
        let sessions = &mut self.table.lock().sessions;
        if !name.is_empty() {
            let held = sessions.take(name).ok_or_else(|| not_found("resume"))?;
            let probes = sessions.get_mut(name).cloned().unwrap_or_default();
            return Ok((held, probes.into_iter().map(|id| id.0).collect()));
        }
        let have = sessions.len();
        if have >= self.most {
            let why = format!(
                "this VM has {have} sessions, as many as it takes: end some, wait until those of clients that were cut \
                 off have ended, or start vmprobed with a larger --max-sessions"
            );
            return Err(status::exhausted("--max-sessions", why));
        }
        Ok((sessions.add(BTreeSet::new())?, Vec::new()))
    }

    /// Checks that there is a session of this name, if it isn't empty.
    pub(super) fn check(&self, name: &str) -> Result<(), Status> {
        let is_there = name.is_empty() || self.table.lock().sessions.get_mut(name).is_some();
        is_there.then_some(()).ok_or_else(|| not_found("session"))
    }

    /// Makes probes go with the session of this name, if it isn't empty.
    pub(super) fn add(&self, name: &str, probes: &[ProbeId]) {
        let table = &mut *self.table.lock();
        if let Some(session) = table.sessions.get_mut(name) {
            session.extend(probes);
            let named = probes.iter().map(|id| (*id, name.to_owned()));
            table.of_probe.extend(named);
        }
    }

    /// Forgets removed probes.
    pub(super) fn forget(&self, probes: &[ProbeId]) {
        let table = &mut *self.table.lock();
        for id in probes {
            let session = table.of_probe.remove(id);
            let session = session.and_then(|name| table.sessions.get_mut(&name));
            if let Some(session) = session {
                session.remove(id);
            }
        }
    }

    /// Sets in each description whether the probe goes with a session.
    pub(super) fn describe(&self, mut probes: Vec<v1::Probe>) -> Vec<v1::Probe> {
        let table = self.table.lock();
        for probe in &mut probes {
            probe.in_session = table.of_probe.contains_key(&ProbeId(probe.id));
        }
        probes
    }

    /// Ends a session, unless another stream holds it by now. Returns its probes, which the caller removes.
    pub(super) fn end(&self, held: &Held) -> Vec<ProbeId> {
        let ended = self.table.lock().sessions.end(held);
        ended.into_iter().flatten().collect()
    }
}

fn not_found(field: &str) -> Status {
    let why = "there is no such session: it has ended, and its probes are gone; open a new one";
    status::with_field(Code::NotFound, field, why)
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;

    #[test]
    fn a_session_s_probes_are_its_own_until_they_are_removed() {
        let sessions = Sessions::new(9);
        let ((one, _), (other, _)) = (sessions.hold("").unwrap(), sessions.hold("").unwrap());
        sessions.add(&one.name, &[ProbeId(3), ProbeId(5)]);
        sessions.add(&other.name, &[ProbeId(7)]);
        sessions.add("", &[ProbeId(9)]);
        let probe = |id| v1::Probe {
            id,
            ..Default::default()
        };
        let told = sessions.describe(vec![probe(3), probe(9)]);
        assert_eq!((told[0].in_session, told[1].in_session), (true, false));
        sessions.forget(&[ProbeId(3), ProbeId(9)]);
        let (again, probes) = sessions.hold(&one.name).unwrap();
        assert_eq!(probes, [5]);
        assert_eq!(sessions.end(&one), []);
        assert_eq!(sessions.end(&again), [ProbeId(5)]);
        for refused in [
            sessions.check(&one.name),
            sessions.hold(&one.name).map(drop),
        ] {
            assert_eq!(refused.unwrap_err().code(), Code::NotFound);
        }
        assert_eq!(sessions.end(&other), [ProbeId(7)]);
    }

    #[test]
    fn there_are_only_so_many_sessions() {
        let sessions = Sessions::new(3);
        let held: Vec<_> = (0..3).map(|_| sessions.hold("").unwrap().0).collect();
        let refused = sessions.hold("").unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let details = refused.get_details_quota_failure().unwrap();
        assert_eq!(details.violations[0].subject, "--max-sessions");
        sessions.end(&held[0]);
        assert!(sessions.hold("").is_ok());
    }
}
