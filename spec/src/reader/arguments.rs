//! The arguments among the words behind the place.

use vmprobe_proto::v1::probe_spec::{Kind, Place};

use super::cursor::WrongAt;
use crate::argument::{self, Argument, Fetch, Reason, Site};
use crate::limits::ARGUMENTS_MAX;

/// Names that the kernel's events have themselves (`reserved_field_names` in
/// `kernel/trace/trace_probe.c`).
const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

/// A function's entry may begin with an `endbr64` of this many bytes, and a place behind it counts as the entry
/// (`arch_adjust_kprobe_addr` in `arch/x86/kernel/kprobes/core.c`).
const ENDBR: u64 = 4;

/// Returns where a probe is, as far as its text tells.
pub fn site(kind: &Kind, place: &Place) -> Site {
    match (kind, place) {
        (Kind::Return(_), _) => Site::Return,
        (Kind::Watchpoint(_), _) => Site::Inside,
        (Kind::Instruction(_), Place::Symbol(place)) => match place.offset {
            0 => Site::Entry,
            ENDBR => Site::Unknown,
            _ => Site::Inside,
        },
        (Kind::Instruction(_), Place::Address(_)) => Site::Unknown,
    }
}

/// The arguments so far, each with its place in the text.
#[derive(Default)]
pub struct Arguments(Vec<(usize, String, Argument)>);

impl Arguments {
    /// Adds the argument that a word is.
    pub fn add(&mut self, at: usize, word: &str, site: Site) -> Result<(), WrongAt> {
        let wrong = |wrong| WrongAt::of_argument(at, &wrong);
        let argument = argument::parse(word).map_err(wrong)?;
        argument.check(site).map_err(wrong)?;
        let all = 0..word.len();
        if self.0.len() == ARGUMENTS_MAX {
            return Err(wrong(Reason::TooMany.at(all)));
        }
        if is_all(&argument) && self.0.iter().any(|(_, _, other)| is_all(other)) {
            return Err(wrong(Reason::TwiceAll.at(all)));
        }
        self.0.push((at, word.to_owned(), argument));
        Ok(())
    }

    /// Checks that no name occurs twice. It isn't known how many arguments `$arg*` stands for, so the default names of
    /// the arguments behind it aren't known either.
    pub fn check_names(&self) -> Result<(), WrongAt> {
        let mut names = std::collections::HashSet::from(RESERVED.map(str::to_owned));
        let mut counted = true;
        for (index, (at, word, argument)) in self.0.iter().enumerate() {
            let known =
                argument.name.is_some() || matches!(argument.value.what, Fetch::Variable(_));
            counted &= !is_all(argument);
            if (known || counted) && !names.insert(argument.name_at(index)) {
                let length = argument.name.as_ref().map_or(word.len(), String::len);
                return Err(WrongAt::of_argument(*at, &Reason::UsedName.at(0..length)));
            }
        }
        Ok(())
    }

    /// Returns their texts, in order.
    pub fn into_texts(self) -> Vec<String> {
        self.0.into_iter().map(|(_, text, _)| text).collect()
    }
}

fn is_all(argument: &Argument) -> bool {
    argument.value.what == Fetch::AllArguments
}
