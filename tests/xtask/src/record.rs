//! Results of the end-to-end tests, and the conformance report made of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It can't be done there.
    Skip,
    /// It passed.
    Pass,
    /// It failed.
    Fail,
}

/// One line of the results, as `e2e run` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// The test.
    pub name: String,
    /// Rows of the yardstick.
    pub ids: Vec<String>,
    /// How it ended.
    pub status: Status,
    /// Where it ran.
    #[serde(rename = "where")]
    pub place: String,
    /// A remark, or the reason.
    pub note: String,
}

/// One entry of the conformance report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Row of the yardstick.
    pub id: String,
    /// Failed if any test failed; passed if any passed and none failed.
    pub status: Status,
    /// The tests, or those that failed.
    pub test: String,
    /// Where they ran.
    #[serde(rename = "where")]
    pub place: String,
    /// Their remarks.
    pub note: String,
}

/// Reads the lines of a results file.
///
/// # Errors
/// If a line is no record.
pub fn read(lines: &str) -> Result<Vec<Record>, serde_json::Error> {
    lines
        .lines()
        .filter(|line| !line.is_empty())
        .map(serde_json::from_str)
        .collect()
}

/// One entry for each row and place, in their order.
pub fn conformance(records: &[Record]) -> Vec<Entry> {
    let mut groups: BTreeMap<(&str, &str), Vec<&Record>> = BTreeMap::new();
    for record in records {
        for id in &record.ids {
            groups.entry((id, &record.place)).or_default().push(record);
        }
    }
    let entry = |((id, place), group): ((&str, &str), Vec<&Record>)| {
        let status = group
            .iter()
            .map(|record| record.status)
            .max()
            .unwrap_or(Status::Skip);
        // Those that made the status what it is.
        let told: Vec<_> = group
            .into_iter()
            .filter(|record| record.status == status)
            .collect();
        let names: Vec<&str> = told.iter().map(|record| &*record.name).collect();
        let notes: Vec<&str> = told
            .iter()
            .map(|record| &*record.note)
            .filter(|note| !note.is_empty())
            .collect();
        Entry {
            id: id.to_owned(),
            status,
            test: names.join(", "),
            place: place.to_owned(),
            note: notes.join("; "),
        }
    };
    groups.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_test_fails_its_row_where_it_failed() {
        let lines = r#"
{"name":"a","ids":["VM01","KP01"],"status":"pass","where":"lab","note":"","millis":1}
{"name":"b","ids":["VM01"],"status":"fail","where":"lab","note":"no","millis":1}
{"name":"c","ids":["VM01"],"status":"pass","where":"host","note":"","millis":1}
{"name":"d","ids":["VM01"],"status":"skip","where":"host","note":"","millis":1}"#;
        let entries = conformance(&read(lines).unwrap());
        let found: Vec<_> = entries
            .iter()
            .map(|e| (&*e.id, &*e.place, e.status, &*e.test))
            .collect();
        let expected = [
            ("KP01", "lab", Status::Pass, "a"),
            ("VM01", "host", Status::Pass, "c"),
            ("VM01", "lab", Status::Fail, "b"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_line_that_is_cut_off_is_an_error() {
        assert!(read("{\"name\":\"a\",\"ids\"").is_err());
    }
}
