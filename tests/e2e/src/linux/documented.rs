//! What the documents say about jumps.

use std::collections::BTreeSet;

const PERFORMANCE: &str = include_str!("../../../../docs/performance.md");
const JUMP_PROBES: &str = include_str!("../../../../docs/jump-probes.md");

/// Stands, in the list of reasons, for all kinds of the blacklist.
const LISTED: &str = "the blacklist's kinds";

/// Returns how many of a hundred instructions can be jumps, of those that can be probed (BN08), in the kernel of this
/// version, such as `6.12`.
pub fn instructions_that_can_be_jumps(version: &str) -> Option<f64> {
    let mut lines = PERFORMANCE.lines();
    let head = lines.find(|line| line.starts_with("| can be jumps"))?;
    let row = lines.find(|line| line.starts_with("| all instructions (BN08)"))?;
    let prefix = format!("{version}.");
    let column = cells(head).position(|cell| cell.starts_with(&prefix))?;
    cells(row).nth(column)?.split_once(" %")?.0.parse().ok()
}

/// The documented kinds of reasons why a probe is no jump; `listed` are the kinds of the blacklist.
pub fn reasons<'a>(listed: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let section = JUMP_PROBES.split("## Why a probe is no jump").nth(1);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let rows = section.unwrap_or_default().lines();
    let is_head = |line: &str| line.starts_with("| kind ") || line.starts_with("| ---");
    let rows = rows.filter(|line| line.starts_with("| ") && !is_head(line));
    let kinds = rows.filter_map(|row| cells(row).next());
    let mut kinds: BTreeSet<&str> = kinds.flat_map(|kinds| kinds.split(", ")).collect();
    if kinds.remove(LISTED) {
        kinds.extend(listed);
    }
    kinds
}

/// The cells of a table's row.
fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_each_kernel_is_in_the_document() {
        for version in ["6.1", "6.12"] {
            let share = instructions_that_can_be_jumps(version);
            assert!(
                share.is_some_and(|share| (80.0..100.0).contains(&share)),
                "{version}: {share:?}"
            );
        }
        assert_eq!(instructions_that_can_be_jumps("5.0"), None);
    }

    #[test]
    fn reasons_are_those_of_both_tables_and_of_the_list() {
        let kinds = reasons(["ftrace"].into_iter());
        for kind in [
            "asked",
            "switched off",
            "guest int3",
            "branch",
            "watchpoint",
            "ftrace",
        ] {
            assert!(kinds.contains(kind), "{kind}: {kinds:?}");
        }
        for kind in ["", "kind", "---", LISTED] {
            assert!(!kinds.contains(kind), "{kind}: {kinds:?}");
        }
    }
}
