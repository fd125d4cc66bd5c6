//! The result of a soak.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::epoch::Sums;
use super::levels::Sample;

/// The result of a soak.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The seed of its random numbers.
    pub seed: u64,
    /// How long it took.
    pub seconds: u64,
    /// Epochs that went well.
    pub epochs: u64,
    /// How often clients did each action.
    pub actions: BTreeMap<&'static str, u64>,
    /// The sums of the probes of all epochs.
    pub sums: Sums,
    /// Samples of the server's process at the end of each epoch.
    pub server: Vec<Sample>,
    /// Samples of the processes of the guests that ran all the time.
    pub vms: [Vec<Sample>; 2],
    /// Why it failed; `None` if it passed.
    pub failure: Option<String>,
}

impl Report {
    /// A report of a soak that begins.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The processes and their samples.
    pub fn processes(&self) -> impl Iterator<Item = (String, &[Sample])> {
        let vms = self.vms.iter().zip(1..);
        let vms = vms.map(|(samples, vm)| (format!("the process of VM {vm}"), &**samples));
        [("the server".to_owned(), &*self.server)]
            .into_iter()
            .chain(vms)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: u64 = self.actions.values().sum();
        write!(
            f,
            "{} s, {} epochs, {actions} actions of {} kinds, {} hits, {} events and {} lost by followers, {} streams broken",
            self.seconds,
            self.epochs,
            self.actions.len(),
            self.sums.hits,
            self.sums.events,
            self.sums.lost,
            self.sums.breaks
        )?;
        for (process, samples) in self.processes() {
            if let (Some(first), Some(last)) = (samples.first(), samples.last()) {
                write!(
                    f,
                    "; {process}: {} to {} MiB, {} to {} files, {} to {} threads",
                    first.rss_kib >> 10,
                    last.rss_kib >> 10,
                    first.files,
                    last.files,
                    first.threads,
                    last.threads
                )?;
            }
        }
        write!(f, "; --seed {}", self.seed)
    }
}
