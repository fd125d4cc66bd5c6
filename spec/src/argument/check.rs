//! What an argument needs of a probe's place, and what it is called there.

use super::error::{Reason, Wrong};
use super::{Argument, BaseType, Fetch, Value};

/// Where a probe is, as far as its text tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// At a function's entry.
    Entry,
    /// At a function's return.
    Return,
    /// Inside a function, or on data.
    Inside,
    /// At an address, or so near behind a symbol that only the kernel's image tells whether that is the
    /// function's entry.
    Unknown,
}

impl Argument {
    /// Checks that the argument can be had at a place: `$retval` at a return only, a function's arguments
    /// at its entry and return only.
    ///
    /// # Errors
    /// [`Wrong`] with the part of it that can't.
    pub fn check(&self, site: Site) -> Result<(), Wrong> {
        let value = innermost(&self.value);
        let reason = match (&value.what, site) {
            (Fetch::ReturnValue, Site::Entry | Site::Inside | Site::Unknown) => {
                Reason::ReturnValueOnProbe
            }
            (Fetch::Argument(_) | Fetch::AllArguments, Site::Inside) => Reason::NotAtEntry,
            (Fetch::Variable(_), Site::Inside) => Reason::VariableNotAtEntry,
            _ => return Ok(()),
        };
        Err(reason.at(value.span.clone()))
    }

    /// Returns the name in a probe's events: its own, that of the parameter that it is, or `argN`, where N counts from
    /// 1 and `index` from 0 (`generate_probe_arg_name` in `kernel/trace/trace_probe.c`).
    ///
    /// Where the kernel's types are known, `$argN` without a name of its own has that of the parameter,
    /// which the caller has to look up (`traceprobe_expand_meta_args`).
    #[must_use]
    pub fn name_at(&self, index: usize) -> String {
        // `traceprobe_expand_dentry_args` has a dereference in the parameter's place.
        let base = self.kind.as_ref().map(|kind| kind.base);
        let is_name_of = matches!(base, Some(BaseType::NameOfDentry | BaseType::NameOfFile));
        match (&self.name, &self.value.what) {
            (Some(name), _) => name.clone(),
            (None, Fetch::Variable(name)) if !is_name_of => name.clone(),
            (None, _) => format!("arg{}", index + 1),
        }
    }
}

/// Returns the value with which all accesses of a value begin.
fn innermost(mut value: &Value) -> &Value {
    loop {
        value = match &value.what {
            Fetch::Memory { address, .. } => address,
            Fetch::Member { of, .. } => of,
            _ => return value,
        };
    }
}
