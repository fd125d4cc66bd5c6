//! The calls that are being followed, and the tasks that they belong to.

use std::sync::Arc;

use guest_state::x86_64::paging::{PageTables, read_virt};
use guest_state::{GuestMemory, GuestVirtAddr, MemoryError, StoppedGuest, Tsc};

use crate::calls::Task;
use crate::engine::Engine;
use crate::engine::sites::probe::Probe;
use crate::probe::{ProbeId, ProbeKind};

/// A call under way whose return address leads to our code.
///
/// Until it returns, the guest's own stack traces of its task end there. Those that have to be reliable fail,
/// so the guest's live patching waits for the task (`kernel/livepatch/transition.c`, `klp_check_stack`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedCall {
    /// The probes that will report its return. None where they were removed meanwhile, and a tool of the guest's has
    /// taken its return address too.
    pub probes: Vec<ProbeId>,
    /// The time at the function's entry, if a probe wants events.
    pub entry_tsc: Option<Tsc>,
    /// The address that it will return to.
    pub caller: GuestVirtAddr,
    /// The address of its task's `task_struct`, if it is known.
    pub task: Option<u64>,
    /// The task's number (a thread's, as user space has it), if it can be read.
    pub pid: Option<u32>,
    /// The task's name, if it can be read.
    pub comm: Option<String>,
}

impl Engine {
    /// Returns all calls that are being followed, but those whose tasks have ended inside.
    ///
    /// # Errors
    /// The arena isn't memory.
    pub fn followed_calls(
        &self,
        guest: &dyn StoppedGuest,
    ) -> Result<Vec<FollowedCall>, MemoryError> {
        let memory = guest.memory();
        let tables = self.kernel_tables(guest);
        let call = |task: Task, probes, entry_tsc, caller| {
            let (pid, comm) = self.who(memory, &tables, task);
            FollowedCall {
                probes,
                entry_tsc,
                caller: GuestVirtAddr(caller),
                task: Some(task.at).filter(|at| *at != 0),
                pid,
                comm,
            }
        };
        let mut found = Vec::new();
        if let Some(calls) = self.reader.calls() {
            let under_way = calls.under_way(memory)?;
            let alive = |task| !self.has_ended(memory, &tables, task);
            let under_way = under_way.iter().filter(|call| !call.returns());
            for it in under_way.filter(|call| alive(call.task)) {
                let tsc = Some(Tsc(it.entry_tsc)).filter(|_| it.has_time());
                let probes = match it.is_orphan() {
                    true => Vec::new(),
                    false => self.followers(it.number),
                };
                found.push(call(it.task, probes, tsc, it.caller));
            }
        }
        let replaced = self.returns.map(|it| {
            let alive = !self.has_ended(memory, &tables, it.task);
            alive.then(|| call(it.task, it.probes().collect(), it.entry_tsc(), it.caller))
        });
        found.extend(replaced.into_iter().flatten());
        Ok(found)
    }

    /// Returns the return probes whose calls a detour follows.
    fn followers(&self, number: u32) -> Vec<ProbeId> {
        let table = self.table();
        let site = self.reader.detour_of(number).and_then(|at| table.site(at));
        let returns = |probe: &&Arc<Probe>| matches!(probe.kind, ProbeKind::Return { .. });
        let probes = site.into_iter().flat_map(|site| site.enabled());
        probes.filter(returns).map(|probe| probe.id).collect()
    }

    /// Reads a task's number and name.
    fn who(
        &self,
        memory: &dyn GuestMemory,
        tables: &[PageTables],
        task: Task,
    ) -> (Option<u32>, Option<String>) {
        let variables = self.kernel.variables;
        let at = |offset: Option<u32>| {
            let at = task.at.wrapping_add(offset?.into());
            (task.at != 0).then_some(GuestVirtAddr(at))
        };
        let pid = at(variables.pid).and_then(|at| bytes(memory, tables, at));
        let comm: Option<[u8; 16]> = at(variables.comm).and_then(|at| bytes(memory, tables, at));
        let text = |comm: [u8; 16]| {
            let len = comm.iter().position(|byte| *byte == 0);
            String::from_utf8_lossy(&comm[..len.unwrap_or(comm.len())]).into_owned()
        };
        (pid.map(u32::from_le_bytes), comm.map(text))
    }
}

fn bytes<const N: usize>(
    memory: &dyn GuestMemory,
    tables: &[PageTables],
    at: GuestVirtAddr,
) -> Option<[u8; N]> {
    tables.iter().find_map(|tables| {
        let mut bytes = [0; N];
        read_virt(memory, *tables, at, &mut bytes).ok()?;
        Some(bytes)
    })
}
