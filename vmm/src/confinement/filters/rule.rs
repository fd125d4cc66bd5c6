//! One line of a filter.

use libc::c_long;
use seccompiler::{BackendError, SeccompRule};

use super::condition::Condition;

/// A system call that a thread may make.
#[derive(Debug)]
pub(super) struct Rule {
    /// Its number.
    pub(super) call: c_long,
    /// What it is needed for.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and a test"))]
    pub(super) reason: &'static str,
    /// The condition on its arguments; any will do if there is none.
    pub(super) condition: Option<Condition>,
}

impl Rule {
    /// A call, whatever its arguments.
    pub(super) const fn any(call: c_long, reason: &'static str) -> Self {
        Self {
            call,
            reason,
            condition: None,
        }
    }

    /// A call with an argument that meets the condition.
    pub(super) const fn only(call: c_long, condition: Condition, reason: &'static str) -> Self {
        Self {
            call,
            reason,
            condition: Some(condition),
        }
    }

    /// The rule in the form that the library takes; none where any arguments will do.
    pub(super) fn compile(&self) -> Result<Option<SeccompRule>, BackendError> {
        let condition = self.condition.as_ref().map(Condition::compile);
        let condition = condition.transpose()?;
        condition.map(|it| SeccompRule::new(vec![it])).transpose()
    }
}
