//! The task that a vCPU executes at a hit.

/// What is told of the task that a vCPU executes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TaskContext {
    /// `task_struct.pid`
    pub pid: u32,
    /// `task_struct.tgid`
    pub tgid: u32,
    /// `task_struct.comm`, up to its NUL.
    pub comm: [u8; 16],
    /// The CPU's preemption count, as in `include/linux/preempt.h`.
    pub preempt_count: u32,
    /// `thread_info.flags`
    pub thread_flags: u64,
    /// `task_struct.migration_disabled`
    pub migration_disabled: u32,
}

impl TaskContext {
    /// The task's name.
    pub fn name(&self) -> &[u8] {
        let mut parts = self.comm.split(|byte| *byte == 0);
        parts.next().unwrap_or_default()
    }
}
