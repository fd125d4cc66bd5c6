//! Events to Parquet files.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::command::{Export, HOST, number};
use super::guest::{self, VM};
use super::python;
use crate::context::Context;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const READ: Test = Test {
    name: "duckdb_and_pyarrow_read_every_hit_once_in_a_folder_of_parquet_files",
    ids: &["SV10"],
    needs: Needs::Host,
    run: read,
};

pub const FULL: Test = Test {
    name: "an_export_that_cannot_write_says_so_counts_what_failed_and_leaves_whole_files",
    ids: &["SV10"],
    needs: Needs::Host,
    run: full,
};

const HITS: u32 = 4000;
/// Events of an export whose disk has room.
const SOME: u32 = 100;

/// The rows that each reader finds, in the order of their times.
#[derive(Deserialize)]
struct Rows {
    duckdb: Vec<Vec<Value>>,
    pyarrow: Vec<Vec<Value>>,
}

async fn rows(cx: &Context, folder: &Path) -> Result<Rows, Failure> {
    python::run(cx, include_str!("rows.py"), &[folder.as_ref()]).await
}

/// All files below a folder.
fn files(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Failure::io("list files"))? {
        let entry = entry.map_err(Failure::io("list files"))?;
        match entry.path().is_dir() {
            true => found.extend(files(&entry.path())?),
            false => found.push(entry.path().display().to_string()),
        }
    }
    Ok(found)
}

fn read(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let events = folder.path().join("events");
    let path = events.to_string_lossy();
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder.path(), HITS).await?;
        let count = HITS.to_string();
        // Files end while the guest runs.
        let args = ["--parquet", &path, "--parquet-age", "1", "--count", &count];
        let mut export = Export::start(cx, &server, folder.path(), "", &args)?;
        export.says(&format!("{HOST}/{VM}: 1 probes")).await?;
        client.start_vm(VM).await?;
        check_eq!(export.end().await?, Some(0), "exit code");
        guest::check_hits(&client, HITS.into()).await?;
        let notes = export.notes()?;
        let expected = format!("parquet: {HITS} events exported, 0 failed");
        check!(notes.contains(&expected), "{expected:?} isn't in {notes}");

        let files = files(&events)?;
        let unfinished = files.iter().find(|file| !file.ends_with(".parquet"));
        check_eq!(unfinished, None, "what is left");
        check!(files.len() > 1, "all events are in one file");
        let Rows { duckdb, pyarrow } = rows(cx, &events).await?;
        check_eq!(duckdb.len(), HITS as usize, "rows");
        for (at, row) in duckdb.iter().enumerate() {
            let [
                host,
                date,
                hour,
                vm,
                probe,
                kind,
                n,
                text,
                unix_ns,
                us,
                time,
                symbol,
            ] = &row[..]
            else {
                return Err(wrong!("{row:?}"));
            };
            let said = json!([host, vm, probe, kind, n, text, symbol]);
            let expected = json!([HOST, VM, "pass", "pre", at, at.to_string(), "body+0x0"]);
            check_eq!(said, expected, "row {at}");
            let ns = unix_ns.as_u64().unwrap_or(0);
            check_eq!(us, &json!(ns / 1000), "microseconds of {ns}");
            let hour = format!(
                "{} {:02}",
                date.as_str().unwrap_or(""),
                hour.as_u64().unwrap_or(99)
            );
            check_eq!(time, &json!(hour), "the folder of {ns}");
        }
        check!(
            duckdb == pyarrow,
            "DuckDB and pyarrow read {duckdb:?} and {pyarrow:?}"
        );
        pass_with(format!("{} files", files.len()))
    })
}

fn full(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let events = folder.path().join("events");
    let path = events.to_string_lossy();
    cx.block_on(async {
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder.path(), guest::ENDLESS).await?;
        client.start_vm(VM).await?;
        let count = SOME.to_string();
        let mut args = vec!["--parquet", &path, "--parquet-age", "1"];
        let mut with_room = args.clone();
        with_room.extend(["--count", &count]);
        let mut export = Export::start(cx, &server, folder.path(), "", &with_room)?;
        check_eq!(export.end().await?, Some(0), "exit code with room");

        // With this limit a file of a kilobyte is too large, and writing to it fails.
        let limit = "trap '' XFSZ; ulimit -f 2; ";
        args.extend(["--vm", VM]);
        let mut export = Export::start(cx, &server, folder.path(), limit, &args)?;
        check_eq!(export.end().await?, Some(1), "exit code without room");
        let notes = export.notes()?;
        check!(
            notes.contains("can't write Parquet files below") && notes.contains(&*path),
            "it isn't told: {notes}"
        );
        let came = number(&notes, " events, 0 lost")?;
        let failed = number(&notes, " failed")?;
        check!(
            came > 0 && came == failed,
            "{came} events came, {failed} failed: {notes}"
        );
        let files = files(&events)?;
        let unfinished = files.iter().find(|file| !file.ends_with(".parquet"));
        check_eq!(unfinished, None, "what is left");
        let rows = rows(cx, &events).await?;
        check_eq!(
            rows.duckdb.len(),
            SOME as usize,
            "rows of the export with room"
        );
        pass_with(notes.lines().last().unwrap_or_default().to_owned())
    })
}
