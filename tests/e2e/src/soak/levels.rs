//! Checks that the use of resources by processes stays level.

use serde::Serialize;

use crate::process::Process;
use crate::test::Failure;

/// The resources that a process uses at a moment when nothing is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Memory in RAM, in KiB.
    pub rss_kib: u64,
    /// Open files.
    pub files: u64,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// Takes a sample.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn of(process: Process) -> Result<Self, Failure> {
        Ok(Self {
            rss_kib: process.status("VmRSS")?,
            files: process.open_files()? as u64,
            threads: process.status("Threads")?,
        })
    }
}

/// How much more a process may use at the end than at the beginning. An allocator keeps what the largest load so far
/// took, and a runtime keeps some threads for a while. A leak grows with the number of clients' actions and soon
/// exceeds this.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    pub rss_kib: u64,
    pub threads: u64,
}

/// A quantity by its name, in a sample, and what it may grow by.
type Quantity = (&'static str, fn(&Sample) -> u64, u64);

/// Returns the samples without the first quarter: after it, nothing is used for the first time.
pub fn warm(samples: &[Sample]) -> &[Sample] {
    samples.get(samples.len() / 4..).unwrap_or_default()
}

/// Returns the quantities that have grown: the least of the last third of the samples is above the most of the first
/// third. Peaks and drops don't matter. Files don't vary where nothing is under way, so they may not grow at all.
pub fn grown(samples: &[Sample], allowance: Allowance) -> Vec<String> {
    let third = samples.len().div_ceil(3);
    let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
    let quantities: [Quantity; 3] = [
        ("KiB of memory", |it| it.rss_kib, allowance.rss_kib),
        ("open files", |it| it.files, 0),
        ("threads", |it| it.threads, allowance.threads),
    ];
    let grown = quantities.into_iter().filter_map(|(what, of, allowed)| {
        let before = first.iter().map(of).max()?;
        let after = last.iter().map(of).min()?;
        let told = || format!("{after} {what}, up from {before} ({allowed} more are allowed)");
        (after > before + allowed).then(told)
    });
    grown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: Allowance = Allowance {
        rss_kib: 1000,
        threads: 2,
    };

    fn samples(each: impl Fn(u64) -> (u64, u64, u64)) -> Vec<Sample> {
        let samples = (0..12).map(each);
        let samples = samples.map(|(rss_kib, files, threads)| Sample {
            rss_kib,
            files,
            threads,
        });
        samples.collect()
    }

    #[test]
    fn what_varies_and_comes_back_is_level() {
        let varied = samples(|at| (50_000 + at % 3 * 9000, 20, 8 + at % 5));
        assert_eq!(grown(&varied, ALLOWANCE), [""; 0]);
    }

    #[test]
    fn what_leaks_with_each_epoch_has_grown() {
        let memory = grown(&samples(|at| (50_000 + at * 300, 20, 8)), ALLOWANCE);
        assert!(
            memory.len() == 1 && memory[0].contains("memory"),
            "{memory:?}"
        );
        let files = grown(&samples(|at| (50_000, 20 + at / 4, 8)), ALLOWANCE);
        assert_eq!(files.len(), 1, "{files:?}");
        let threads = grown(&samples(|at| (50_000, 20, 8 + at)), ALLOWANCE);
        assert_eq!(threads.len(), 1, "{threads:?}");
    }

    #[test]
    fn the_first_quarter_is_a_warm_up() {
        let all = samples(|at| (at.max(3) * 1000, 20, 8));
        assert_eq!(warm(&all).len(), 9);
        assert!(warm(&[]).is_empty());
    }
}
