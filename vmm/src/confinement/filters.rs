//! The filters of system calls (seccomp(2)), compiled from `filters/`.
//!
//! A file there is an array of rules as seccompiler takes them: a system call, the reason for it, and conditions on
//! its arguments. `every.json` holds for each role. The word `PROCESS` as a value stands for this process's number.

use std::{collections::HashMap, process};

use seccompiler::{BpfProgram, TargetArch, apply_filter, compile_from_json};
use serde_json::{Map, Value, json};

use super::{error::ConfinementError, role::Role};

const EVERY: &str = include_str!("filters/every.json");

/// A filter for each role.
pub(super) struct Filters(HashMap<Role, BpfProgram>);

impl Filters {
    /// Compiles them.
    ///
    /// # Errors
    /// A file is wrong, which a test rules out.
    pub(super) fn compile() -> Result<Self, ConfinementError> {
        let compiled = Role::ALL.into_iter();
        let compiled = compiled.map(|role| Ok((role, compile(role)?)));
        Ok(Self(compiled.collect::<Result<_, ConfinementError>>()?))
    }

    /// Has the filter of `role` hold for the calling thread and those that it starts, for good. So does the end of all
    /// new privileges by executing files (`PR_SET_NO_NEW_PRIVS`).
    ///
    /// # Errors
    /// The host's kernel refuses.
    pub(super) fn apply(&self, role: Role) -> Result<(), ConfinementError> {
        let none = || wrong("there is none of this role");
        let filter = self.0.get(&role).ok_or_else(none)?;
        apply_filter(filter).map_err(ConfinementError::Seccomp)
    }
}

fn wrong(why: impl Into<String>) -> ConfinementError {
    ConfinementError::Filter(why.into())
}

fn compile(role: Role) -> Result<BpfProgram, ConfinementError> {
    const NAME: &str = "role";
    let filters = json!({
        NAME: {
            // The handler of the signal says which call it was, and ends the process.
            "mismatch_action": "trap",
            "match_action": "allow",
            "filter": rules(role)?,
        }
    });
    let text = filters.to_string();
    let mut compiled = compile_from_json(text.as_bytes(), TargetArch::x86_64)
        .map_err(|error| wrong(error.to_string()))?;
    compiled.remove(NAME).ok_or_else(|| wrong("it is missing"))
}

/// The rules of a role: its own, those of every role, and those of the roles that it includes.
fn rules(role: Role) -> Result<Vec<Value>, ConfinementError> {
    let mut rules = Vec::new();
    let included = Role::ALL.into_iter().filter(|other| role.includes(*other));
    let included = included.map(Role::rules);
    for text in [EVERY, role.rules()].into_iter().chain(included) {
        rules.extend(parse(text)?);
    }
    // One rule that allows a call whatever its arguments makes those with conditions void.
    let any = |rule: &Value| rule.get("args").is_none();
    let free: Vec<Value> = rules.iter().filter(|rule| any(rule)).cloned().collect();
    let is_free = |rule: &Value| free.iter().any(|free| free["syscall"] == rule["syscall"]);
    rules.retain(|rule| any(rule) || !is_free(rule));
    Ok(rules)
}

/// The rules of a file, with this process's number in its place.
fn parse(text: &str) -> Result<Vec<Value>, ConfinementError> {
    let mut rules: Vec<Map<String, Value>> =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    for rule in &mut rules {
        let conditions = rule.get_mut("args").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten() {
            if condition["val"] == "PROCESS" {
                condition["val"] = process::id().into();
            }
        }
    }
    Ok(rules.into_iter().map(Value::Object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_compiles_and_gives_a_reason_for_each_call() {
        Filters::compile().unwrap();
        for text in Role::ALL.map(Role::rules).into_iter().chain([EVERY]) {
            for rule in parse(text).unwrap() {
                let reason = rule["comment"].as_str();
                assert!(reason.is_some_and(|reason| !reason.is_empty()), "{rule}");
            }
        }
    }

    #[test]
    fn no_role_repeats_a_rule_of_every_role_or_of_its_own() {
        let calls = |text| {
            let free = parse(text).unwrap();
            let free = free.into_iter().filter(|rule| rule.get("args").is_none());
            free.map(|rule| rule["syscall"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let every = calls(EVERY);
        for role in Role::ALL {
            let own = calls(role.rules());
            for (index, call) in own.iter().enumerate() {
                let is_new = !every.contains(call) && !own[..index].contains(call);
                assert!(is_new, "{role:?} repeats {call}");
            }
        }
    }

    #[test]
    fn no_filter_lets_a_thread_execute_a_program_or_make_memory_executable() {
        for role in Role::ALL {
            for rule in rules(role).unwrap() {
                let call = rule["syscall"].as_str().unwrap();
                assert!(
                    !["execve", "execveat", "ptrace"].contains(&call),
                    "{role:?}"
                );
                if ["mmap", "mprotect"].contains(&call) {
                    assert!(rule.get("args").is_some(), "{role:?}: {rule}");
                }
            }
        }
    }
}
