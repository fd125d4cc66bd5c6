//! Definitions that the kernel takes as well.

use vmprobe_client::v1::NoJumpReason;

use super::tables::{BOTH, LONG, NEWER};

/// The same probe for the product and for the guest's kernel.
pub struct Definition {
    pub ours: String,
    pub theirs: String,
    /// Why it can't be a jump.
    pub no_jump: Option<NoJumpReason>,
}

impl Definition {
    pub fn new(text: &str) -> Self {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut it = Self {
            ours: text.to_owned(),
            theirs: format!("{kind}:mine/{rest}"),
            no_jump: None,
        };
        it.no_jump = it.reason();
        it
    }

    fn reason(&self) -> Option<NoJumpReason> {
        let is_long = LONG.contains(&self.name());
        is_long.then_some(NoJumpReason::ValuesTooLong)
    }

    /// The event's name.
    pub fn name(&self) -> &str {
        let rest = self.ours.split_once(':').map_or("", |(_, rest)| rest);
        rest.split(' ').next().unwrap_or_default()
    }

    /// Returns the function that it is on, and the place in it. A return probe is at its entry.
    fn place(&self) -> (&str, Option<&str>) {
        let place = self.ours.split(' ').nth(1).unwrap_or_default();
        let place = place.trim_end_matches("%return");
        match place.split_once('+') {
            Some((function, offset)) => (function, Some(offset)),
            None => (place, None),
        }
    }

    /// How many values it has.
    pub fn values(&self) -> usize {
        self.ours.split(' ').count() - 2
    }
}

/// Returns all that a kernel takes.
pub fn all(is_new: bool) -> Vec<Definition> {
    let newer = NEWER.iter().filter(|_| is_new);
    // Functions of older kernels begin without the four bytes of `endbr64`.
    let placed = |text: &&str| match is_new {
        true => Definition::new(text),
        false => Definition::new(&text.replace("+9 ", "+5 ")),
    };
    let mut all: Vec<Definition> = BOTH.iter().chain(newer).map(placed).collect();
    all.push(Definition::new(&most_arguments()));
    all
}

/// Returns as many arguments as are allowed.
fn most_arguments() -> String {
    /// `MAX_TRACE_ARGS` in `kernel/trace/trace_probe.h`.
    const MOST: usize = 128;
    const WHAT: [&str; 6] = [
        "%di:x32",
        "$stack0",
        "%si:u16",
        "\\7:s8",
        "%sp",
        "+0($stack):x8",
    ];
    let arguments = (0..MOST).zip(WHAT.iter().cycle());
    let arguments = arguments.map(|(index, what)| format!(" a{index}={what}"));
    format!("p:most __fput{}", arguments.collect::<String>())
}

/// Returns those that are at functions' ends. Inside functions, the guest's kernel takes no probe on a breakpoint that
/// isn't its own (`can_probe` in `arch/x86/kernel/kprobes/core.c`), and the product takes none where the guest has one.
pub fn at_ends(mut all: Vec<Definition>) -> Vec<Definition> {
    all.retain(|definition| definition.place().1.is_none());
    all
}

/// Splits the definitions into parts of which none has two on the same function: a jump has room for only one
/// definition's values, and hides the instructions behind it from the guest.
pub fn apart(all: Vec<Definition>) -> Vec<Vec<Definition>> {
    let mut parts: Vec<Vec<Definition>> = Vec::new();
    for definition in all {
        let (function, _) = definition.place();
        let has_room = |part: &&mut Vec<Definition>| {
            let mut functions = part.iter().map(|other| other.place().0);
            functions.all(|other| other != function)
        };
        match parts.iter_mut().find(has_room) {
            Some(part) => part.push(definition),
            None => parts.push(vec![definition]),
        }
    }
    parts
}

/// How one of our lines compares with one of the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// They have the same values, except for numbers of ours that are `(fault)`.
    Same {
        faults: usize,
    },
    Different,
}

/// Bytes of a text in our events at most.
const TEXT_MAX: usize = 256;

/// Compares the values of two lines. If a number can't be read, ours is `(fault)`, and the guest's is what its buffer
/// had before. A longer text of the guest's begins with ours. An empty text of a process is `(fault)` in kernels whose
/// `strncpy_from_user_nofault` gives it no length (`mm/maccess.c`).
pub fn compare(ours: &str, theirs: &str) -> Likeness {
    if ours == theirs {
        return Likeness::Same { faults: 0 };
    }
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (fields(ours), fields(theirs));
    let mut faults = 0;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let split = |field: &'_ str| field.split_once('=').map(|(name, _)| name.len() + 1);
        let (Some(at), true) = (split(ours), split(ours) == split(theirs)) else {
            if ours == theirs {
                continue;
            }
            return Likeness::Different;
        };
        let ((name, one), (its_name, other)) = (ours.split_at(at), theirs.split_at(at));
        let is_text = ["\"", "(", "{\"", "{("]
            .iter()
            .any(|start| other.starts_with(start));
        let begins = || {
            let begun = one
                .strip_suffix('"')
                .filter(|text| text.len() == TEXT_MAX + 1);
            begun.is_some_and(|text| other.starts_with(text))
        };
        let is_empty = one == "\"\"" && other == "(fault)";
        match name == its_name {
            true if one == other || is_empty || begins() => {}
            true if one == "(fault)" && !is_text => faults += 1,
            _ => return Likeness::Different,
        }
    }
    match ours.len() == theirs.len() {
        true => Likeness::Same { faults },
        false => Likeness::Different,
    }
}

fn fields(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_number_that_can_t_be_read_and_a_text_that_is_too_long_are_the_only_differences() {
        let same = |faults| Likeness::Same { faults };
        let long = "x".repeat(TEXT_MAX);
        let (cut, whole) = (format!("a=\"{long}\""), format!("a=\"{long}yz\""));
        for (ours, theirs, expected) in [
            ("init-1 a=1 b=\"x y\"", "init-1 a=1 b=\"x y\"", same(0)),
            ("init-1 a=(fault) b=2", "init-1 a=0x7 b=2", same(1)),
            ("init-1 a=(fault)", "init-1 a={0x7,0x8}", same(1)),
            ("init-1 a=(fault)", "init-1 a=\"x\"", Likeness::Different),
            ("init-1 a=1", "init-1 a=(fault)", Likeness::Different),
            ("init-1 a=\"\"", "init-1 a=(fault)", same(0)),
            ("init-1 a=\"x\"", "init-1 a=(fault)", Likeness::Different),
            ("init-1 a=1", "init-1 b=1", Likeness::Different),
            ("init-1 a=1", "init-2 a=1", Likeness::Different),
            ("a=1 b=1", "a=1", Likeness::Different),
            (&cut, &whole, same(0)),
            ("a=\"x\"", "a=\"xy\"", Likeness::Different),
        ] {
            assert_eq!(compare(ours, theirs), expected, "{ours} and {theirs}");
        }
    }

    #[test]
    fn each_definition_has_its_own_name_and_there_are_at_least_60() {
        let all = all(true);
        let names: BTreeSet<&str> = all.iter().map(Definition::name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() >= 60, "{}", all.len());
    }

    #[test]
    fn no_two_definitions_of_a_part_are_on_one_function() {
        let count = all(true).len();
        let parts = apart(all(true));
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), count);
        for part in parts {
            let functions: BTreeSet<&str> = part.iter().map(|it| it.place().0).collect();
            assert_eq!(functions.len(), part.len());
        }
    }
}
