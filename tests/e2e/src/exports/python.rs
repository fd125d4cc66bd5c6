//! Libraries of Python, with which users read exported events.

use std::ffi::OsStr;
use std::process::Stdio;

use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::test::{Failure, wrong};

/// The folder with the libraries, beside the programs.
const LIBRARIES: &str = "python-readers";

/// Runs a script, and reads the JSON that it prints.
pub async fn run<T: DeserializeOwned>(
    cx: &Context,
    script: &str,
    args: &[&OsStr],
) -> Result<T, Failure> {
    let output = tokio::process::Command::new("python3")
        .args(["-c", script])
        .args(args)
        .env("PYTHONPATH", cx.program(LIBRARIES))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(Failure::io("run python3, which deploy/setup.sh installs"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(wrong!("python3 failed: {errors}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).map_err(|error| wrong!("{error} in {text:?}"))
}
