//! Suggestions for a name that no symbol has.

use super::{SIMILAR, Symbols};

/// Longer names are compared by their beginnings only: the work grows with the product of lengths.
const LONGEST: usize = 64;
/// A name may have one wrong letter for this many letters.
const LETTERS_A_SLIP: usize = 4;
/// A name with more wrong letters is a different name.
const MOST_SLIPS: usize = 3;
/// Room that the compiler leaves before functions; it has the function's name.
const PADDING: [&str; 2] = ["__pfx_", "__cfi_"];

/// How a symbol's name resembles the requested one. Smaller values are more similar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    /// The compiler derived it from the requested name: `name.isra.0`, `name.cold`.
    Made,
    /// The number of letters that are missing, added, wrong or swapped.
    Slips(usize),
    /// It continues: `name_noprof`, `name_locked`.
    GoesOn,
    /// It has a prefix: `__name`, `__x64_sys_name`.
    BeginsBefore,
}

impl Symbols {
    /// Returns a few names that resemble one that no symbol has, the most similar first.
    pub(super) fn similar(&self, name: &str) -> Vec<String> {
        similar_names(name, self.iter().map(|symbol| symbol.name))
    }
}

/// Returns a few of `names` that resemble a name that isn't among them, the most similar first.
pub fn similar_names<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<_> = names
        .filter_map(|other| Some((likeness(name, other)?, other)))
        .collect();
    // Equal ones stay in their order.
    found.sort_by_key(|(likeness, other)| match likeness {
        Likeness::Made => (*likeness, 0),
        _ => (*likeness, other.len()),
    });
    let mut names: Vec<String> = Vec::new();
    for (_, other) in found {
        if names.len() == SIMILAR {
            break;
        }
        if !names.iter().any(|name| name == other) {
            names.push(other.to_owned());
        }
    }
    names
}

fn likeness(name: &str, other: &str) -> Option<Likeness> {
    if name.is_empty() || PADDING.iter().any(|prefix| other.starts_with(prefix)) {
        return None;
    }
    if let Some(rest) = other.strip_prefix(name) {
        if rest.starts_with('.') {
            return Some(Likeness::Made);
        }
        if rest.starts_with('_') {
            return Some(Likeness::GoesOn);
        }
    }
    let begins_before = || {
        let rest = other.strip_suffix(name);
        let fits = rest.is_some_and(|rest| rest.ends_with('_'));
        fits.then_some(Likeness::BeginsBefore)
    };
    slips(name, other)
        .map(Likeness::Slips)
        .or_else(begins_before)
}

/// Returns how many letters of a name are wrong; `None` if too many are.
fn slips(name: &str, other: &str) -> Option<usize> {
    let most = (name.len() / LETTERS_A_SLIP).min(MOST_SLIPS);
    // Each letter added or missing is a mistake.
    if most == 0 || name.len() > LONGEST || name.len().abs_diff(other.len()) > most {
        return None;
    }
    let slips = strsim::osa_distance(name, other);
    (slips <= most).then_some(slips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_like_what_the_compiler_or_the_kernel_made_of_it_and_what_is_mistyped() {
        for (name, other, expected) in [
            ("f", "f.isra.0", Some(Likeness::Made)),
            (
                "kmem_cache_alloc",
                "kmem_cache_alloc_noprof",
                Some(Likeness::GoesOn),
            ),
            (
                "sys_openat",
                "__x64_sys_openat",
                Some(Likeness::BeginsBefore),
            ),
            ("vfs_raed", "vfs_read", Some(Likeness::Slips(1))),
            ("vfs_rea", "vfs_read", Some(Likeness::Slips(1))),
            ("vfs_wriet", "vfs_read", None),
            ("vfs_read", "__pfx_vfs_read", None),
            ("open", "do_open", Some(Likeness::BeginsBefore)),
            ("abc", "abd", None),
            ("", "anything", None),
        ] {
            assert_eq!(likeness(name, other), expected, "{name} {other}");
        }
    }

    #[test]
    fn a_name_without_an_end_costs_nothing() {
        let (long, other) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
        assert_eq!(likeness(&long, &other), None);
    }
}
