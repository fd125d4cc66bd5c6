//! Results of the tests, and the conformance report made of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Where tests run: on this machine's own KVM, and in the labs on upstream's.
pub const PLACES: [&str; 3] = ["host", "lab-amd", "lab-intel"];

/// How a test ended, or the state of a row, which is the greatest of its tests'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// For a row: no test that proves it ran.
    Missing,
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
    /// Rows of docs/requirements.md.
    pub ids: Vec<String>,
    /// How it ended.
    pub status: Status,
    /// Where it ran.
    #[serde(rename = "where")]
    pub place: String,
    /// A remark, or the reason.
    pub note: String,
}

/// A claim on rows: of one test, as a line of `e2e list --json`, or of a whole part of the tests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Claim {
    /// The test, or the part.
    pub name: String,
    /// Rows of docs/requirements.md.
    pub ids: Vec<String>,
    /// True if it isn't one test: each of its rows is proved by some test of this part.
    #[serde(default)]
    pub is_part: bool,
}

impl Claim {
    /// The claim of a part of the tests that can't list its tests.
    pub fn part(name: &str, ids: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            ids: ids.iter().copied().map(str::to_owned).collect(),
            is_part: true,
        }
    }

    /// Returns true if this claims a row and the record is about that row.
    fn is_met(&self, id: &str, by: &Record) -> bool {
        let has = |ids: &[String]| ids.iter().any(|found| found == id);
        (self.is_part || self.name == by.name) && has(&self.ids) && has(&by.ids)
    }
}

/// A run of tests at one place.
#[derive(Debug)]
pub struct Run {
    /// Where, one of [`PLACES`].
    pub place: &'static str,
    /// The tests that should have run.
    pub claims: Vec<Claim>,
    /// The results of those that did.
    pub records: Vec<Record>,
    /// Why it did not get to its end.
    pub died: Option<String>,
}

/// One entry of the conformance report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Row of docs/requirements.md.
    pub id: String,
    /// Failed if any test failed or did not run; passed if any passed and none failed.
    pub status: Status,
    /// The tests that made the status what it is.
    pub test: String,
    /// Where they ran.
    #[serde(rename = "where")]
    pub place: String,
    /// Their remarks and, if it passed, those of skipped tests.
    pub note: String,
}

/// The result of one test for a row.
struct Told {
    status: Status,
    test: String,
    note: String,
}

/// Reads lines of results, or of claims.
///
/// # Errors
/// If a line isn't one.
pub fn read<T: for<'a> Deserialize<'a>>(lines: &str) -> Result<Vec<T>, serde_json::Error> {
    lines
        .lines()
        .filter(|line| !line.is_empty())
        .map(serde_json::from_str)
        .collect()
}

/// One entry for each row and place, in the order of both lists. `claimed` are the rows that any
/// test claims, wherever it may run.
pub fn conformance(rows: &[&str], runs: &[Run], claimed: &BTreeSet<&str>) -> Vec<Entry> {
    let mut told: BTreeMap<(&str, &str), Vec<Told>> = BTreeMap::new();
    for run in runs {
        for record in &run.records {
            for id in &record.ids {
                let test = Told {
                    status: record.status,
                    test: record.name.clone(),
                    note: record.note.clone(),
                };
                told.entry((id, run.place)).or_default().push(test);
            }
        }
        let reason = run.died.as_deref().unwrap_or("nobody knows why");
        for (claim, id) in run.unmet() {
            let test = Told {
                status: Status::Fail,
                test: claim.name.clone(),
                note: format!("it did not run: {reason}"),
            };
            told.entry((id, run.place)).or_default().push(test);
        }
    }
    let all = rows.iter().flat_map(|id| PLACES.map(|place| (*id, place)));
    let entry = |(id, place)| match told.remove(&(id, place)) {
        Some(tests) => Entry::new(id, place, &tests),
        None => Entry::missing(id, place, claimed.contains(id)),
    };
    all.map(entry).collect()
}

impl Run {
    /// Returns the rows that should have been proved or refuted here and were not, with their
    /// claims.
    pub fn unmet(&self) -> impl Iterator<Item = (&Claim, &str)> {
        let met = |claim: &Claim, id: &str| self.records.iter().any(|by| claim.is_met(id, by));
        let rows = self.claims.iter().flat_map(|claim| {
            let ids = claim.ids.iter().map(String::as_str);
            ids.map(move |id| (claim, id))
        });
        rows.filter(move |(claim, id)| !met(claim, id))
    }

    /// Returns rows that tests have named and that don't exist, and rows that a part's tests have
    /// named and that the part doesn't claim.
    pub fn strays(&self, rows: &[&str]) -> impl Iterator<Item = (&Record, &str)> {
        let named = self.records.iter().flat_map(|record| {
            let ids = record.ids.iter().map(String::as_str);
            ids.map(move |id| (record, id))
        });
        let is_claimed =
            |id: &str, by: &Record| self.claims.iter().any(|claim| claim.is_met(id, by));
        named.filter(move |(record, id)| !rows.contains(id) || !is_claimed(id, record))
    }
}

impl Entry {
    fn new(id: &str, place: &str, tests: &[Told]) -> Self {
        let status = tests.iter().map(|told| told.status).max();
        let status = status.unwrap_or(Status::Missing);
        let with = |wanted: Status| tests.iter().filter(move |told| told.status == wanted);
        let names: Vec<&str> = with(status).map(|told| &*told.test).collect();
        let mut notes: Vec<String> = with(status)
            .map(|told| told.note.clone())
            .filter(|note| !note.is_empty())
            .collect();
        if status == Status::Pass {
            let skipped = |told: &Told| format!("skipped: {} ({})", told.test, told.note);
            notes.extend(with(Status::Skip).map(skipped));
        }
        Self {
            id: id.to_owned(),
            status,
            test: names.join(", "),
            place: place.to_owned(),
            note: notes.join("; "),
        }
    }

    fn missing(id: &str, place: &str, is_claimed: bool) -> Self {
        let note = match (is_claimed, id.starts_with("BN")) {
            (true, _) => "its tests did not run here",
            (false, true) => "a figure: see target/bench/report.json, which `make bench` writes",
            (false, false) => "no test proves it yet",
        };
        Self {
            id: id.to_owned(),
            status: Status::Missing,
            test: String::new(),
            place: place.to_owned(),
            note: note.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(place: &'static str, claims: &[(&str, &[&str])], lines: &str) -> Run {
        let claim = |(name, ids): &(&str, &[&str])| Claim {
            is_part: false,
            ..Claim::part(name, ids)
        };
        Run {
            place,
            claims: claims.iter().map(claim).collect(),
            records: read(lines).unwrap(),
            died: None,
        }
    }

    fn told(rows: &[&str], runs: &[Run]) -> Vec<Entry> {
        let claims = runs.iter().flat_map(|run| &run.claims);
        let claimed = claims.flat_map(|claim| claim.ids.iter().map(String::as_str));
        let entries = conformance(rows, runs, &claimed.collect());
        assert_eq!(entries.len(), rows.len() * PLACES.len());
        entries
    }

    fn of(told: &[Entry], id: &str, place: &str) -> (Status, String, String) {
        let found = told
            .iter()
            .find(|entry| entry.id == id && entry.place == place);
        let found = found.unwrap().clone();
        (found.status, found.test, found.note)
    }

    fn entry(status: Status, test: &str, note: &str) -> (Status, String, String) {
        (status, test.to_owned(), note.to_owned())
    }

    #[test]
    fn one_failed_test_fails_its_row_where_it_failed() {
        let lab = r#"
{"name":"a","ids":["VM01","KP01"],"status":"pass","where":"lab-amd","note":"","millis":1}
{"name":"b","ids":["VM01"],"status":"fail","where":"lab-amd","note":"no","millis":1}"#;
        let host = r#"
{"name":"c","ids":["VM01"],"status":"pass","where":"host","note":"","millis":1}"#;
        let runs = [
            run("host", &[("c", &["VM01"])], host),
            run(
                "lab-amd",
                &[("a", &["VM01", "KP01"]), ("b", &["VM01"])],
                lab,
            ),
        ];
        let told = told(&["VM01", "KP01"], &runs);
        assert_eq!(of(&told, "KP01", "lab-amd"), entry(Status::Pass, "a", ""));
        assert_eq!(of(&told, "VM01", "host"), entry(Status::Pass, "c", ""));
        assert_eq!(of(&told, "VM01", "lab-amd"), entry(Status::Fail, "b", "no"));
    }

    #[test]
    fn a_row_that_nothing_ran_is_missing_and_its_note_says_whether_it_has_a_test() {
        let runs = [run(
            "host",
            &[("a", &["KP01"])],
            r#"{"name":"a","ids":["KP01"],"status":"pass","where":"host","note":""}"#,
        )];
        let told = told(&["KP01", "TR01", "BN03"], &runs);
        let missing = |note| entry(Status::Missing, "", note);
        assert_eq!(
            of(&told, "KP01", "lab-amd"),
            missing("its tests did not run here")
        );
        assert_eq!(of(&told, "TR01", "host"), missing("no test proves it yet"));
        let (status, _, note) = of(&told, "BN03", "lab-intel");
        assert!(
            status == Status::Missing && note.contains("make bench"),
            "{note}"
        );
    }

    #[test]
    fn a_test_that_should_have_run_and_did_not_fails_its_rows_although_others_passed() {
        let lines = r#"{"name":"a","ids":["KP01"],"status":"pass","where":"lab-amd","note":""}"#;
        let mut lab = run(
            "lab-amd",
            &[("a", &["KP01"]), ("b", &["KP01", "KP02"])],
            lines,
        );
        lab.died = Some("the lab died".into());
        let told = told(&["KP01", "KP02"], &[lab]);
        let expected = entry(Status::Fail, "b", "it did not run: the lab died");
        assert_eq!(of(&told, "KP01", "lab-amd"), expected);
        assert_eq!(of(&told, "KP02", "lab-amd"), expected);
        assert_eq!(of(&told, "KP02", "host").0, Status::Missing);
    }

    #[test]
    fn a_part_fails_the_rows_of_which_none_of_its_tests_tells() {
        let lines = r#"{"name":"a","ids":["KP10"],"status":"pass","where":"host","note":""}"#;
        let mut unit = run("host", &[], lines);
        unit.claims = vec![Claim::part("unit tests", &["KP10", "JP07"])];
        let unmet: Vec<_> = unit.unmet().map(|(claim, id)| (&*claim.name, id)).collect();
        assert_eq!(unmet, [("unit tests", "JP07")]);
        let told = told(&["KP10", "JP07"], &[unit]);
        assert_eq!(of(&told, "KP10", "host"), entry(Status::Pass, "a", ""));
        assert_eq!(of(&told, "JP07", "host").0, Status::Fail);
    }

    #[test]
    fn a_pass_beside_skips_lists_what_was_skipped_and_skips_alone_are_a_skip() {
        let lines = r#"
{"name":"a","ids":["KP01"],"status":"pass","where":"host","note":"of 3"}
{"name":"b","ids":["KP01","KP02"],"status":"skip","where":"host","note":"no device"}"#;
        let claims: [(&str, &[&str]); 2] = [("a", &["KP01"]), ("b", &["KP01", "KP02"])];
        let told = told(&["KP01", "KP02"], &[run("host", &claims, lines)]);
        let note = "of 3; skipped: b (no device)";
        assert_eq!(of(&told, "KP01", "host"), entry(Status::Pass, "a", note));
        assert_eq!(
            of(&told, "KP02", "host"),
            entry(Status::Skip, "b", "no device")
        );
    }

    #[test]
    fn rows_that_do_not_exist_and_rows_that_nobody_claims_are_strays() {
        let lines =
            r#"{"name":"a","ids":["KP01","KP02","KP99"],"status":"pass","where":"host","note":""}"#;
        let run = run("host", &[("a", &["KP01", "KP99"])], lines);
        let strays: Vec<_> = run.strays(&["KP01", "KP02"]).map(|(_, id)| id).collect();
        assert_eq!(strays, ["KP02", "KP99"]);
    }

    #[test]
    fn a_line_that_is_cut_off_is_an_error() {
        assert!(read::<Record>("{\"name\":\"a\",\"ids\"").is_err());
    }
}
