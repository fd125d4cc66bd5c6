//! What the events of a boot say.

use std::collections::HashMap;

use vmprobe_client::v1::Event;
use vmprobe_client::v1::event::Detail;

/// Calls that are remembered one by one. A kernel has about a thousand initcalls.
const INITCALLS_MAX: usize = 1 << 16;

/// A place in the boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootStage {
    pub name: String,
    /// Guest TSC of its first hit.
    pub first: Option<u64>,
    pub hits: u64,
    /// Hits don't count before this one has been hit.
    after: Option<usize>,
}

/// A call of an initcall, from `do_one_initcall`'s entry to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initcall {
    pub function: u64,
    pub vcpu: u32,
    /// Guest TSC.
    pub start: u64,
    /// Guest TSC ticks.
    pub took: u64,
    /// 0, or an error below 0.
    pub returned: i32,
}

/// A probe that isn't there, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub name: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    BootStage(usize),
    Initcall,
}

/// Gathers the events of a boot.
#[derive(Clone, Debug, Default)]
pub struct BootLog {
    stages: Vec<BootStage>,
    roles: HashMap<u64, Role>,
    until: Option<usize>,
    left_out: Vec<LeftOut>,
    initcalls: Vec<Initcall>,
    unremembered: u64,
    lost: u64,
}

impl BootLog {
    /// Adds a probe whose first hit belongs into the timeline. Returns its place in the list.
    pub fn add_probe(&mut self, id: u64, name: String) -> usize {
        let index = self.stages.len();
        self.stages.push(BootStage {
            name,
            first: None,
            hits: 0,
            after: None,
        });
        self.roles.insert(id, Role::BootStage(index));
        index
    }

    /// Passes over a stage's hits until another one has been hit.
    pub fn only_after(&mut self, stage: usize, other: usize) {
        self.stages[stage].after = Some(other);
    }

    /// Sets the stage at which the boot is over.
    pub fn watch_until(&mut self, stage: usize) {
        self.until = Some(stage);
    }

    /// Sets the return probe on `do_one_initcall`.
    pub fn add_initcall_probe(&mut self, id: u64) {
        self.roles.insert(id, Role::Initcall);
    }

    pub fn is_initcall(&self, id: u64) -> bool {
        self.roles.get(&id) == Some(&Role::Initcall)
    }

    pub fn leave_out(&mut self, name: &str, reason: String) {
        let name = name.to_owned();
        self.left_out.push(LeftOut { name, reason });
    }

    pub fn lost(&mut self, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
    }

    /// Takes an event in. Returns true if the boot is over with it.
    pub fn add(&mut self, event: &Event) -> bool {
        match self.roles.get(&event.probe_id) {
            Some(Role::BootStage(index)) => self.hit(*index, event.tsc),
            Some(Role::Initcall) => {
                self.returned(event);
                false
            }
            None => false,
        }
    }

    fn hit(&mut self, index: usize, tsc: u64) -> bool {
        let after = self.stages[index].after;
        if after.is_some_and(|other| self.stages[other].first.is_none()) {
            return false;
        }
        let stage = &mut self.stages[index];
        stage.hits += 1;
        // Events of different vCPUs may come out of order.
        stage.first = Some(stage.first.map_or(tsc, |first| first.min(tsc)));
        self.until == Some(index)
    }

    fn returned(&mut self, event: &Event) {
        let Some(Detail::Return(returned)) = &event.detail else {
            return;
        };
        if self.initcalls.len() == INITCALLS_MAX {
            self.unremembered += 1;
            return;
        }
        let value = event.registers.unwrap_or_default().rax;
        self.initcalls.push(Initcall {
            function: returned.entry.unwrap_or_default().rdi,
            vcpu: event.vcpu,
            start: returned.entry_tsc,
            took: event.tsc.saturating_sub(returned.entry_tsc),
            // `do_one_initcall` returns an int: the upper half says nothing.
            returned: value as u32 as i32,
        });
    }

    /// In the order in which they were added.
    pub fn stages(&self) -> &[BootStage] {
        &self.stages
    }

    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    pub fn initcalls(&self) -> &[Initcall] {
        &self.initcalls
    }

    /// Initcalls that were seen, but are too many to be told one by one.
    pub fn unremembered(&self) -> u64 {
        self.unremembered
    }

    /// Events that this client read too late.
    pub fn events_lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
pub mod tests {
    use vmprobe_client::v1::{Registers, Return};

    use super::*;

    pub fn hit(probe_id: u64, tsc: u64) -> Event {
        Event {
            probe_id,
            tsc,
            ..Default::default()
        }
    }

    pub fn initcall(probe_id: u64, function: u64, times: (u64, u64), returned: i32) -> Event {
        Event {
            probe_id,
            tsc: times.1,
            registers: Some(Registers {
                rax: u64::from(returned.cast_unsigned()),
                ..Default::default()
            }),
            detail: Some(Detail::Return(Return {
                entry_tsc: times.0,
                entry: Some(Registers {
                    rdi: function,
                    ..Default::default()
                }),
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    #[test]
    fn the_first_hit_counts_and_the_end_is_told() {
        let mut log = BootLog::default();
        let start = log.add_probe(1, "start".into());
        let end = log.add_probe(2, "end".into());
        log.watch_until(end);
        assert!(!log.add(&hit(1, 100)));
        assert!(!log.add(&hit(1, 90)));
        assert!(!log.add(&hit(7, 95)));
        assert!(log.add(&hit(2, 200)));
        assert_eq!(log.stages()[start].first, Some(90));
        assert_eq!(log.stages()[start].hits, 2);
    }

    #[test]
    fn a_stage_may_count_only_after_another() {
        let mut log = BootLog::default();
        let freed = log.add_probe(1, "free_initmem".into());
        let execve = log.add_probe(2, "kernel_execve".into());
        log.only_after(execve, freed);
        log.watch_until(execve);
        assert!(!log.add(&hit(2, 10)));
        assert!(!log.add(&hit(1, 20)));
        assert!(log.add(&hit(2, 30)));
        assert_eq!(log.stages()[execve].first, Some(30));
    }

    #[test]
    fn an_initcall_has_its_function_duration_and_result() {
        let mut log = BootLog::default();
        log.add_initcall_probe(5);
        assert!(log.is_initcall(5) && !log.is_initcall(6));
        log.add(&initcall(5, 0xf00, (10, 25), -19));
        // Without its details there is nothing to tell; a clock that runs back is no overflow.
        log.add(&hit(5, 30));
        log.add(&initcall(5, 0xba0, (50, 40), 0));
        let calls = log.initcalls();
        assert_eq!(calls.len(), 2);
        assert_eq!(
            (calls[0].function, calls[0].took, calls[0].returned),
            (0xf00, 15, -19)
        );
        assert_eq!(calls[1].took, 0);
    }

    #[test]
    fn a_guest_that_calls_for_ever_is_only_counted() {
        let mut log = BootLog::default();
        log.add_initcall_probe(5);
        for _ in 0..INITCALLS_MAX + 3 {
            log.add(&initcall(5, 1, (0, 1), 0));
        }
        assert_eq!(log.initcalls().len(), INITCALLS_MAX);
        assert_eq!(log.unremembered(), 3);
    }
}
