//! Runs of tests side by side: as many at once as this machine has CPUs and memory for.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use crate::record::Run;

/// A run of tests that keeps one CPU busy.
pub type Job<'a> = Box<dyn FnOnce() -> Run + Send + 'a>;

/// Runs jobs, `workers` at a time, each as soon as an earlier one has ended. Returns their results in the order of the
/// jobs.
pub fn run<T: Send>(jobs: Vec<Box<dyn FnOnce() -> T + Send + '_>>, workers: usize) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let waiting: Mutex<VecDeque<_>> = Mutex::new(jobs.into_iter().zip(&results).collect());
    let next = || waiting.lock().ok()?.pop_front();
    thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                while let Some((job, result)) = next() {
                    let value = job();
                    if let Ok(mut result) = result.lock() {
                        *result = Some(value);
                    }
                }
            });
        }
    });
    // A panic of a job ends the scope above, so each job has its result here.
    let results = results.into_iter();
    results
        .filter_map(|result| result.into_inner().ok().flatten())
        .collect()
}

/// Returns how many jobs of this memory can run at once.
pub fn workers(mib_each: u32) -> usize {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available_mib(&text) {
        Some(free) => cpus.min((free / u64::from(mib_each)) as usize).max(1),
        None => cpus,
    }
}

/// Returns the memory that is available to programs, by /proc/meminfo (proc(5)).
fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_jobs_and_two_run_at_once() {
        let both = &Barrier::new(2);
        let job = |number: u32, meets: bool| -> Box<dyn FnOnce() -> u32 + Send + '_> {
            Box::new(move || {
                if meets {
                    both.wait();
                }
                number
            })
        };
        let jobs = vec![job(1, true), job(2, true), job(3, false)];
        assert_eq!(run(jobs, 2), [1, 2, 3]);
        assert_eq!(run(vec![job(4, false), job(5, false)], 0), [4, 5]);
    }

    #[test]
    fn the_available_memory_is_read() {
        let text = "MemTotal:       24680000 kB\nMemAvailable:   8388608 kB\nBuffers: 1 kB\n";
        assert_eq!(available_mib(text), Some(8192));
        assert_eq!(available_mib("MemTotal: 1 kB"), None);
    }
}
