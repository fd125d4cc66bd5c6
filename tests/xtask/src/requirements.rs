//! The rows of `docs/requirements.md`, the only list of them.

/// The document, as it was when this was built.
const DOCUMENT: &str = include_str!("../../../docs/requirements.md");

/// The ids of all rows, in the document's order.
pub fn ids() -> Vec<&'static str> {
    DOCUMENT.lines().filter_map(id).collect()
}

/// The id in the first cell of a table's line.
fn id(line: &str) -> Option<&str> {
    let first = line.strip_prefix("| ")?.split_once(" | ")?.0;
    let (letters, digits) = first.split_at_checked(2)?;
    let is_id = letters.bytes().all(|byte| byte.is_ascii_uppercase())
        && digits.len() == 2
        && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then_some(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_row_begins_with_its_id() {
        assert_eq!(id("| KP05 | several probes at one address |"), Some("KP05"));
        for line in [
            "| id | row |",
            "| --- | --- |",
            "KP05",
            "| KP5 | x |",
            "| pass | x |",
        ] {
            assert_eq!(id(line), None, "{line}");
        }
    }

    #[test]
    fn the_rows_of_each_part_are_numbered_without_a_gap() {
        let mut parts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for id in ids() {
            let (part, number) = id.split_at(2);
            parts.entry(part).or_default().push(number.parse().unwrap());
        }
        let names: Vec<_> = parts.keys().copied().collect();
        assert_eq!(names, ["BN", "JP", "KP", "SV", "TR", "VM"]);
        for (part, numbers) in parts {
            let expected: Vec<usize> = (1..=numbers.len()).collect();
            assert_eq!(numbers, expected, "{part}");
        }
    }
}
