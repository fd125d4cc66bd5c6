//! The filters of system calls (seccomp(2)): a table of rules for each role, and one for all.

mod block;
mod condition;
mod console;
mod end;
mod engine;
mod entropy;
mod every;
mod file_system;
mod network;
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

    /// Has the filter of `role` hold for the calling thread and those that it starts, for good. So does the end of all
    /// new privileges by executing files (`PR_SET_NO_NEW_PRIVS`).
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
    let own = own(role).iter().chain(included.flat_map(own));
    every::RULES.iter().chain(own)
}

/// The rules of a role beside those of every thread.
fn own(role: Role) -> &'static [Rule] {
    match role {
        Role::Vcpu => vcpu::RULES,
        Role::Engine => engine::RULES,
        Role::End => end::RULES,
        Role::Block => block::RULES,
        Role::Network => network::RULES,
        Role::FileSystem => file_system::RULES,
        Role::Vsock => vsock::RULES,
        Role::Entropy => entropy::RULES,
        Role::Console => console::RULES,
        Role::Service => service::RULES,
        Role::Starter => starter::RULES,
    }
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
        let calls = |rules: &[Rule]| {
            let free = rules.iter().filter(|rule| rule.condition.is_none());
            free.map(|rule| rule.call).collect::<Vec<_>>()
        };
        let every = calls(every::RULES);
        for role in Role::ALL {
            let own = calls(own(role));
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
