//! The host's resources that processes use, from `/proc` (proc(5)).

use procfs::process::{LimitValue, Process};
use procfs::{WithCurrentSystemInfo, ticks_per_second};

/// The resources that one process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Seconds of CPU time, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Bytes of its memory that are in RAM.
    pub resident_bytes: u64,
    /// Bytes of its address space.
    pub virtual_bytes: u64,
    /// Files that it has open, if the system allows the look: it takes more rights than the rest
    /// (ptrace(2)).
    pub open_files: Option<u64>,
    /// Files that it may have open, or `None` if there is no limit.
    pub most_files: Option<u64>,
    pub threads: u64,
    /// When it was started, in seconds since 1970 began (UTC).
    pub started: Option<f64>,
}

impl Usage {
    /// Returns the usage of this process.
    pub fn of_this() -> Option<Self> {
        Self::read(&Process::myself().ok()?)
    }

    /// Returns the usage of another process, or `None` if it has gone.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(&Process::new(pid.try_into().ok()?).ok()?)
    }

    fn read(process: &Process) -> Option<Self> {
        let stat = process.stat().ok()?;
        let ticks = (stat.utime + stat.stime) as f64;
        let limits = process.limits().ok();
        Some(Self {
            cpu_seconds: ticks / ticks_per_second() as f64,
            resident_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            open_files: process.fd_count().ok().map(|count| count as u64),
            most_files: limits.and_then(|limits| match limits.max_open_files.soft_limit {
                LimitValue::Value(most) => Some(most),
                LimitValue::Unlimited => None,
            }),
            threads: stat.num_threads.try_into().ok()?,
            started: started(stat.starttime),
        })
    }
}

/// Returns when a process was started that was started this number of ticks after the host, in
/// seconds since 1970.
fn started(ticks: u64) -> Option<f64> {
    let boot = procfs::boot_time_secs().ok()?;
    Some(boot as f64 + ticks as f64 / ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_uses_memory_files_and_threads() {
        let usage = Usage::of_this().unwrap();
        assert!(usage.resident_bytes > 1 << 16 && usage.virtual_bytes >= usage.resident_bytes);
        assert!(usage.open_files >= Some(3) && usage.most_files.is_none_or(|most| most >= 3));
        assert!(usage.threads >= 2, "the test's own, and the runner's");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        // The boot time is in whole seconds.
        assert!(usage.started.unwrap() <= now.as_secs_f64() + 1.0);
        let same = Usage::of(std::process::id()).unwrap();
        assert_eq!(same.started, usage.started);
        assert!(Usage::of(u32::MAX).is_none());
    }
}
