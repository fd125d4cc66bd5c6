//! Why probes are no jumps, by kind.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use vmprobe_client::v1::Probe;
use vmprobe_client::words;

use crate::note;

/// How many probes there are of each kind of reason, and the reason of one of them.
#[derive(Debug, Default)]
pub struct Reasons(BTreeMap<&'static str, (usize, String)>);

impl Reasons {
    /// Counts a probe that is no jump.
    pub fn add(&mut self, probe: &Probe) {
        let why = probe.optimization.clone().unwrap_or_default();
        let entry = self.0.entry(words::no_jump(&why));
        let told = format!("{}: {}", probe.name, why.reason);
        entry.or_insert((0, told)).0 += 1;
    }

    /// Shows all, a line for each kind.
    pub fn show(&self) {
        for (reason, (count, one)) in &self.0 {
            note(&format!("no jump {count:>6} {reason}: {one}"));
        }
    }
}

impl Display for Reasons {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let reasons = self.0.iter();
        let reasons: Vec<String> = reasons
            .map(|(kind, (count, _))| format!("{kind} {count}"))
            .collect();
        f.write_str(&reasons.join(", "))
    }
}
