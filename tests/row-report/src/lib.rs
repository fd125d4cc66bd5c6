//! Reports to `make test` which rows of docs/requirements.md a test has proved.

use std::any::Any;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use serde::Serialize;

/// The file for results, one line of JSON each, as `e2e run` writes them.
const RESULTS: &str = "VMPROBE_RESULTS";

#[derive(Serialize)]
struct Record<'a> {
    name: &'a str,
    ids: &'a [&'a str],
    status: &'a str,
    #[serde(rename = "where")]
    place: &'a str,
    note: String,
}

/// Runs a test and records how it ended, if `VMPROBE_RESULTS` names a file. The test's result is
/// its remark.
///
/// # Panics
/// If the test panics, or the file can't be written.
pub fn proves(ids: &[&str], name: &str, test: impl FnOnce() -> String) {
    let result = catch_unwind(AssertUnwindSafe(test));
    let (status, note) = match &result {
        Ok(note) => ("pass", note.clone()),
        Err(panic) => ("fail", words(&**panic)),
    };
    println_note(name, &note);
    if let Some(path) = std::env::var_os(RESULTS) {
        let record = Record {
            name,
            ids,
            status,
            place: "host",
            note,
        };
        let line = serde_json::to_string(&record).map(|line| line + "\n");
        let written = line.map_err(std::io::Error::from).and_then(|line| {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            // In one write, as tests run at the same time.
            file.write_all(line.as_bytes())
        });
        assert!(written.is_ok(), "can't write the results: {written:?}");
    }
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}

/// Shown by `cargo test -- --nocapture`, and when the test fails.
#[expect(clippy::print_stdout, reason = "the test's own output")]
fn println_note(name: &str, note: &str) {
    println!("{name}: {note}");
}
