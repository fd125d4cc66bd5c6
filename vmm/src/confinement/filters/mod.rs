//! The filters of system calls (seccomp(2)): a table of rules for each role, and one for all.

mod block;
mod condition;
mod device_worker;
mod end;
mod engine;
mod every;
mod file_system;
mod network;
mod new_thread;
mod rule;
mod service;
mod starter;
mod vcpu;
mod vsock;

use std::collections::{BTreeMap, HashMap};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter,
};

use super::error::ConfinementError;
use super::role::Role;
use rule::Rule;

/// A filter for each role.
pub(super) struct Filters(HashMap<Role, BpfProgram>);

impl Filters {
    /// Compiles them.
    ///
    /// # Errors
    /// A table is wrong, which a test rules out.
    pub(super) fn compile() -> Result<Self, ConfinementError> {
        let compiled = Role::ALL.into_iter();
        let compiled = compiled.map(|role| Ok((role, compile(role)?)));
        let compiled = compiled.collect::<Result<_, BackendError>>();
        Ok(Self(compiled.map_err(ConfinementError::Filter)?))
    }

    /// Applies the filter of `role` to the calling thread and those that it starts, for good. They also gain no
    /// privileges any more by executing files (`PR_SET_NO_NEW_PRIVS`).
    ///
    /// # Errors
    /// The host's kernel refuses.
    pub(super) fn apply(&self, role: Role) -> Result<(), ConfinementError> {
        apply_filter(&self.0[&role]).map_err(ConfinementError::Seccomp)
    }
}

fn compile(role: Role) -> Result<BpfProgram, BackendError> {
    let mut by_call = BTreeMap::new();
    for rule in rules(role) {
        let rules: &mut Vec<_> = by_call.entry(rule.call).or_default();
        rules.extend(rule.compile()?);
    }
    // One rule that allows a call whatever its arguments makes those with conditions void.
    for rule in rules(role).filter(|rule| rule.condition.is_none()) {
        by_call.insert(rule.call, Vec::new());
    }
    // The handler of the signal says which call it was, and ends the process.
    let (others, these) = (SeccompAction::Trap, SeccompAction::Allow);
    SeccompFilter::new(by_call, others, these, TargetArch::x86_64)?.try_into()
}

/// The rules of a role: its own, those of every role, and those of the roles that it includes.
fn rules(role: Role) -> impl Iterator<Item = &'static Rule> {
    let included = Role::ALL.into_iter();
    let included = included.filter(move |other| role.includes(*other));
    every::RULES
        .iter()
        .chain(own(role))
        .chain(included.flat_map(own))
}

/// The rules of a role beside those of every thread.
fn own(role: Role) -> impl Iterator<Item = &'static Rule> {
    let tables: &[&[Rule]] = match role {
        Role::Vcpu => &[vcpu::RULES],
        Role::Engine => &[engine::RULES],
        Role::End => &[end::RULES],
        Role::Block => &[device_worker::RULES, block::RULES],
        Role::Network => &[device_worker::RULES, network::RULES],
        Role::FileSystem => &[device_worker::RULES, file_system::RULES],
        Role::Vsock => &[device_worker::RULES, vsock::RULES],
        Role::Entropy | Role::Console => &[device_worker::RULES],
        Role::Service => &[new_thread::RULES, service::RULES],
        Role::Starter => &[new_thread::RULES, starter::RULES],
    };
    tables.iter().copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_compiles_and_gives_a_reason_for_each_call() {
        Filters::compile().unwrap();
        for rule in Role::ALL.into_iter().flat_map(rules) {
            assert!(!rule.reason.is_empty(), "{rule:?}");
        }
    }

    #[test]
    fn no_role_repeats_a_rule_of_every_role_or_of_its_own() {
        let is_free = |rule: &&Rule| rule.condition.is_none();
        let every = every::RULES.iter().filter(is_free);
        let every: Vec<_> = every.map(|rule| rule.call).collect();
        for role in Role::ALL {
            let own: Vec<_> = own(role).filter(is_free).map(|rule| rule.call).collect();
            for (index, call) in own.iter().enumerate() {
                let is_new = !every.contains(call) && !own[..index].contains(call);
                assert!(is_new, "{role:?} repeats {call}");
            }
        }
    }

    #[test]
    fn no_filter_lets_a_thread_execute_a_program_or_make_memory_executable() {
        for role in Role::ALL {
            for rule in rules(role) {
                let program = [libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace];
                assert!(!program.contains(&rule.call), "{role:?}");
                if [libc::SYS_mmap, libc::SYS_mprotect].contains(&rule.call) {
                    assert!(rule.condition.is_some(), "{role:?}: {rule:?}");
                }
            }
        }
    }
}
