//! Guests that tests have given back, for other tests to take: a boot takes longer than most of them.

use std::sync::{Arc, Mutex, PoisonError};

use super::guest::Guest;

/// The most guests that wait for a test. A lab machine has memory for them and for the guests of a test.
const MOST: usize = 4;

/// Workloads that leave a guest as it was before.
const LEAVE_NOTHING: &[&str] = &[
    "none",
    "answers",
    "cpus",
    "files",
    "names",
    "hostile",
    "unmapped",
    "forks",
    "everywhere",
    "pipes",
    "spin",
    "threads",
    "pairs",
    "smp",
    "sleep",
    "kprobe",
    "kprobe-switched",
    "kprobe-jump",
    "define",
    "trace",
    "timed",
    "debugger",
    "sweep",
    "fault",
    "readers",
    "nested",
    "pages",
    "altstack",
    "probeable",
    "blacklist",
    "functions",
    "listing",
    "listing-jumps",
    "log",
    "say",
    "owned",
];

/// The properties by which a test takes a guest that another test has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The kernel's file.
    pub kernel: &'static str,
    /// Number of vCPUs.
    pub vcpus: u32,
}

/// The guests that wait. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KeptGuests(Arc<Mutex<Vec<(Kind, Guest)>>>);

impl KeptGuests {
    /// Takes one of this kind, if there is any.
    pub fn take(&self, kind: Kind) -> Option<Guest> {
        self.with(|guests| {
            let index = guests.iter().position(|(of, _)| *of == kind)?;
            Some(guests.remove(index).1)
        })
    }

    /// Keeps a guest. If there are too many then, returns the one that has waited for longest.
    pub fn put(&self, kind: Kind, guest: Guest) -> Option<Guest> {
        self.with(|guests| {
            guests.push((kind, guest));
            (guests.len() > MOST).then(|| guests.remove(0).1)
        })
    }

    /// Takes one of any kind.
    pub fn take_any(&self) -> Option<Guest> {
        self.with(|guests| Some(guests.pop()?.1))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<(Kind, Guest)>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns true if a line of input, which may ask for a workload, leaves a guest as it was before.
pub fn leaves_nothing(line: &str) -> bool {
    let Some(plan) = line.strip_prefix("workload=") else {
        return true;
    };
    let workload = plan.split(' ').next().unwrap_or_default();
    LEAVE_NOTHING.contains(&workload)
}
