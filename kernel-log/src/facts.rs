//! The CPU and the task that a line of a report names.

use crate::bound::start_of;
use crate::report::Task;

/// Bytes of a task's name that are kept: workers and kernel threads have names of up to 64
/// (`wq_worker_comm` in `kernel/workqueue.c`, `proc_task_name` in `fs/proc/array.c`).
const COMM_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cpu: Option<u32>,
    pub(crate) task: Option<Task>,
}

/// Returns the CPU and the task that a line names.
pub(crate) fn facts(text: &str) -> Facts {
    let text = text.trim();
    Facts {
        cpu: cpu(text),
        task: task(text),
    }
}

fn cpu(text: &str) -> Option<u32> {
    let markers: &[&str] = if text.starts_with("CPU: ") || text.starts_with("WARNING: CPU: ") {
        &["CPU: "]
    } else if text.starts_with("WARNING: ") {
        &[", CPU#"]
    } else {
        // `soft lockup - CPU#1 stuck`, `hard LOCKUP on cpu 1`, `NMI backtrace for cpu 1`, and KCSAN's
        // `by task 12 on cpu 1`.
        &[
            "lockup - CPU#",
            "LOCKUP on cpu ",
            "backtrace for cpu ",
            " on cpu ",
        ]
    };
    markers.iter().find_map(|marker| {
        let (_, rest) = text.split_once(marker)?;
        leading_number(rest)
    })
}

fn task(text: &str) -> Option<Task> {
    // `dump_stack_print_info` in lib/dump_stack.c: CPU: 0 UID: 0 PID: 1 Comm: init Not tainted 6.12.1 #1
    if text.starts_with("CPU: ") {
        let pid = leading_number(text.split_once(" PID: ")?.1)?;
        let (_, rest) = text.split_once(" Comm: ")?;
        let ends = [" Not tainted", " Tainted: ", " Kdump: "];
        let end = ends.iter().filter_map(|end| rest.find(end)).min()?;
        return Task::named(&rest[..end], pid);
    }
    // `__warn` in kernel/panic.c of 6.19: WARNING: file.c:1 at f+0x1/0x2, CPU#1: init/1
    if text.starts_with("WARNING: ") {
        let (_, rest) = text.split_once(", CPU#")?;
        return pair(rest.split_once(": ")?.1, '/');
    }
    // `watchdog_timer_fn` in kernel/watchdog.c: CPU#1 stuck for 22s! [init:1]
    if text.contains("soft lockup - ") {
        return pair(text.rsplit_once(" [")?.1.strip_suffix(']')?, ':');
    }
    // `check_hung_task` in kernel/hung_task.c: INFO: task init:1 blocked for more than 120 seconds.
    if let Some(rest) = text.strip_prefix("INFO: task ") {
        return pair(&rest[..rest.find(" blocked ")?], ':');
    }
    // `__schedule_bug` in kernel/sched/core.c: init/1/0x00000002
    if let Some(rest) = text.strip_prefix("BUG: scheduling while atomic: ") {
        return pair(rest.rsplit_once('/')?.0, '/');
    }
    // `__might_resched` in kernel/sched/core.c: in_atomic(): 1, irqs_disabled(): 0, non_block: 0, pid: 1, name: init
    if text.starts_with("in_atomic(): ") {
        let (_, rest) = text.split_once("pid: ")?;
        return Task::named(rest.split_once("name: ")?.1, leading_number(rest)?);
    }
    // `print_error_description` in mm/kasan/report.c: Read of size 1 at addr ffff888001234567 by task init/1
    if let (true, Some((_, rest))) = (text.contains(" at addr "), text.rsplit_once(" by task ")) {
        return pair(rest, '/');
    }
    // `__oom_kill_process` in mm/oom_kill.c: Out of memory: Killed process 12 (name) total-vm:...
    if let Some((_, rest)) = text.split_once(": Killed process ") {
        let (_, name) = rest.split_once(" (")?;
        return Task::named(name.split_once(") ")?.0, leading_number(rest)?);
    }
    // kernel/locking/lockdep.c, one line in most reports.
    let lockdep = [
        " is trying to ",
        " just changed the state ",
        " is leaving the kernel ",
        " is freeing memory ",
    ];
    let taken = text
        .ends_with(" takes:")
        .then(|| text.find(" [HC"))
        .flatten();
    let end = taken.or_else(|| lockdep.iter().find_map(|end| text.find(end)))?;
    pair(&text[..end], '/')
}

/// Splits `name/12` or `name:12`.
fn pair(text: &str, between: char) -> Option<Task> {
    let (comm, pid) = text.rsplit_once(between)?;
    Task::named(comm, pid.parse().ok()?)
}

impl Task {
    fn named(comm: &str, pid: u32) -> Option<Self> {
        let comm = start_of(comm, COMM_MAX).to_owned();
        Some(Self { comm, pid })
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_cpu_and_its_task() {
        let table = [
            (
                "CPU: 0 PID: 1 Comm: init Not tainted 6.1.0 #1",
                Some(0),
                Some(("init", 1)),
            ),
            (
                "CPU: 1 UID: 0 PID: 7 Comm: my prog Tainted: G        W          6.12.0",
                Some(1),
                Some(("my prog", 7)),
            ),
            (
                "CPU: 1 UID: 0 PID: 7 Comm: kworker/1:2 Kdump: loaded Tainted: G",
                Some(1),
                Some(("kworker/1:2", 7)),
            ),
            (
                "WARNING: CPU: 1 PID: 2 at lib/x.c:3 f+0x1/0x2",
                Some(1),
                None,
            ),
            (
                "WARNING: lib/x.c:3 at f+0x1/0x2, CPU#1: swapper/0/1",
                Some(1),
                Some(("swapper/0", 1)),
            ),
            (
                "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [a:b:12]",
                Some(1),
                Some(("a:b", 12)),
            ),
            (
                "watchdog: Watchdog detected hard LOCKUP on cpu 3",
                Some(3),
                None,
            ),
            (
                "INFO: task kworker/0:1:12 blocked for more than 10 seconds.",
                None,
                Some(("kworker/0:1", 12)),
            ),
            (
                "INFO: task a:1 blocked in I/O wait for more than 10 seconds.",
                None,
                Some(("a", 1)),
            ),
            (
                "BUG: scheduling while atomic: swapper/0/1/0x00000002",
                None,
                Some(("swapper/0", 1)),
            ),
            (
                "in_atomic(): 1, irqs_disabled(): 0, non_block: 0, pid: 12, name: a b",
                None,
                Some(("a b", 12)),
            ),
            (
                "Read of size 1 at addr ffff888001234567 by task a/12",
                None,
                Some(("a", 12)),
            ),
            (
                "Out of memory: Killed process 12 (a b) total-vm:1kB",
                None,
                Some(("a b", 12)),
            ),
            ("a/12 is trying to acquire lock:", None, Some(("a", 12))),
            ("a/12 [HC0[0]:SC0[0]:HE1:SE1] takes:", None, Some(("a", 12))),
            (
                "write to 0xffffffff8101abcd of 8 bytes by task 12 on cpu 1:",
                Some(1),
                None,
            ),
            ("CPU: x PID: y Comm:", None, None),
            ("CPU: 1 PID: 99999999999 Comm: a Not tainted", Some(1), None),
            ("[:]", None, None),
            ("", None, None),
        ];
        for (line, cpu, task) in table {
            let found = facts(line);
            let task = task.map(|(comm, pid): (&str, u32)| (comm.to_owned(), pid));
            assert_eq!(found.cpu, cpu, "{line:?}");
            assert_eq!(
                found.task.map(|task| (task.comm, task.pid)),
                task,
                "{line:?}"
            );
        }
    }
}
